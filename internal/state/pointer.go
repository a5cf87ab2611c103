package state

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// These are the limits of values in the tree.
const (
	MaxDepth   = 64                        // nesting of values
	MaxKey     = 512                       // bytes of a member's name
	maxPointer = MaxDepth * (2*MaxKey + 2) // bytes of a pointer, every character of every key escaped
)

// ErrPointer is matched by the errors of invalid pointers.
var ErrPointer = errors.New("not a JSON Pointer")

// Pointer is an RFC 6901 JSON Pointer as its unescaped tokens; nil is the whole value.
type Pointer []string

// ParsePointer parses a pointer strictly: it is empty or begins with a slash, "~" occurs only before 0 and 1, and
// the text is valid UTF-8. The error is an ErrPointer.
func ParsePointer(s string) (Pointer, error) {
	switch {
	case s == "":
		return nil, nil
	case len(s) > maxPointer:
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrPointer, len(s), maxPointer)
	case s[0] != '/':
		return nil, fmt.Errorf("%w: %.100q does not begin with /", ErrPointer, s)
	case !utf8.ValidString(s):
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrPointer)
	case strings.Count(s, "/") > MaxDepth:
		return nil, fmt.Errorf("%w: more than %d tokens", ErrPointer, MaxDepth)
	}
	p := Pointer(strings.Split(s[1:], "/"))
	for i, t := range p {
		var err error
		if p[i], err = unescape(t); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func unescape(t string) (string, error) {
	if !strings.Contains(t, "~") {
		return t, nil
	}
	var b strings.Builder
	for i := 0; i < len(t); i++ {
		if t[i] != '~' {
			b.WriteByte(t[i])
			continue
		}
		i++
		switch {
		case i < len(t) && t[i] == '0':
			b.WriteByte('~')
		case i < len(t) && t[i] == '1':
			b.WriteByte('/')
		default:
			return "", fmt.Errorf("%w: in %.100q a ~ is followed by neither 0 nor 1", ErrPointer, t)
		}
	}
	return b.String(), nil
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// String returns the encoded pointer, which parses to the same pointer.
func (p Pointer) String() string {
	var b strings.Builder
	for _, t := range p {
		b.WriteByte('/')
		escaper.WriteString(&b, t)
	}
	return b.String()
}

// Has reports whether other is at or below p.
func (p Pointer) Has(other Pointer) bool {
	if len(other) < len(p) {
		return false
	}
	for i := range p {
		if p[i] != other[i] {
			return false
		}
	}
	return true
}

// index parses a token as an index of an array of n elements: decimal without leading zeros and below n.
func index(token string, n int) (int, bool) {
	if token == "" || len(token) > 1 && token[0] == '0' || token[0] < '0' || token[0] > '9' {
		return 0, false
	}
	i, err := strconv.Atoi(token)
	return i, err == nil && i < n
}

// In returns the value at the pointer inside v, which is a value of a tree.
func (p Pointer) In(v any) (any, bool) { return p.lookup(v) }

func (p Pointer) lookup(v any) (any, bool) {
	for _, t := range p {
		switch c := v.(type) {
		case map[string]any:
			child, ok := c[t]
			if !ok {
				return nil, false
			}
			v = child
		case []any:
			i, ok := index(t, len(c))
			if !ok {
				return nil, false
			}
			v = c[i]
		default:
			return nil, false
		}
	}
	return v, true
}
