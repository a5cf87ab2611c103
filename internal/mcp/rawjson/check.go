package rawjson

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// DefaultDepth is how deep arrays and objects may nest if Check gets 0.
const DefaultDepth = 128

// SyntaxError is the position at which a text is not valid for Check.
type SyntaxError struct {
	Offset int // bytes before the wrong one
	Msg    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Msg, e.Offset) }

// A fault is the reason for which a text was refused. It is a number and not a string, because a string
// stored in the checker would move its keys to the heap.
type fault uint8

const (
	cutShort fault = iota
	wantValue
	wantTrue
	wantFalse
	wantNull
	wantDigit
	leadingZero
	tooDeep
	wantInArray
	wantKey
	sameKey
	wantColon
	wantInObject
	badEscape
	control
	notUTF8
	trailing
)

func (f fault) String() string {
	return [...]string{
		cutShort:     "unexpected end of text",
		wantValue:    "expected a value",
		wantTrue:     "expected true",
		wantFalse:    "expected false",
		wantNull:     "expected null",
		wantDigit:    "expected a digit",
		leadingZero:  "number with a leading zero",
		tooDeep:      "nested too deep",
		wantInArray:  "expected a comma or ]",
		wantKey:      "expected a member name",
		sameKey:      "second member of the same name",
		wantColon:    "expected a colon",
		wantInObject: "expected a comma or }",
		badEscape:    "bad escape in a string",
		control:      "control character in a string",
		notUTF8:      "invalid UTF-8 in a string",
		trailing:     "unexpected text after the value",
	}[f]
}

// Check reports whether b is exactly one JSON value by RFC 8259, with optional white space around it,
// and with stricter rules where parsers are known to differ: valid UTF-8, no lone surrogates in \u
// escapes, no object with two members of one (decoded) name, and at most maxDepth nested arrays and
// objects (0 means DefaultDepth). The error is a *SyntaxError. Time is linear in len(b) whatever b
// holds; an object of more than smallObject members allocates.
func Check(b []byte, maxDepth int) error {
	if maxDepth <= 0 {
		maxDepth = DefaultDepth
	}
	c := checker{b: b, left: maxDepth}
	i := c.value(skipSpace(b, 0))
	if i < 0 {
		return c.error()
	}
	if i = skipSpace(b, i); i != len(b) {
		return &SyntaxError{i, trailing.String()}
	}
	return nil
}

// smallObject is the number of members up to which keys are compared one by one.
const smallObject = 16

// checker parses a text by recursion, at most left levels deep. Its methods receive the position to
// read from and return the position after the value, or -1 after they have set why and at.
type checker struct {
	b    []byte
	left int
	keys keyStack
	why  fault
	at   int
}

func (c *checker) error() error {
	if c.at >= len(c.b) {
		c.at, c.why = len(c.b), cutShort
	}
	return &SyntaxError{c.at, c.why.String()}
}

func (c *checker) failAt(at int, f fault) int {
	c.at, c.why = at, f
	return -1
}

func (c *checker) value(i int) int {
	if i >= len(c.b) {
		return c.failAt(i, wantValue)
	}
	switch c.b[i] {
	case '{':
		return c.object(i)
	case '[':
		return c.array(i)
	case '"':
		end, _ := c.string(i)
		return end
	case 't':
		return c.word(i, "true", wantTrue)
	case 'f':
		return c.word(i, "false", wantFalse)
	case 'n':
		return c.word(i, "null", wantNull)
	}
	return c.checkNumber(i)
}

func (c *checker) word(i int, w string, f fault) int {
	if len(c.b)-i >= len(w) && string(c.b[i:i+len(w)]) == w {
		return i + len(w)
	}
	return c.failAt(i, f)
}

func (c *checker) checkNumber(i int) int {
	start := i
	if c.b[i] == '-' {
		i++
	}
	digits := i
	if i = skipDigits(c.b, i); i == digits {
		if digits == start {
			return c.failAt(i, wantValue)
		}
		return c.failAt(i, wantDigit)
	}
	if c.b[digits] == '0' && i > digits+1 {
		return c.failAt(digits+1, leadingZero)
	}
	if i < len(c.b) && c.b[i] == '.' {
		i++
		if digits, i = i, skipDigits(c.b, i); i == digits {
			return c.failAt(i, wantDigit)
		}
	}
	if i < len(c.b) && (c.b[i] == 'e' || c.b[i] == 'E') {
		i++
		if i < len(c.b) && (c.b[i] == '+' || c.b[i] == '-') {
			i++
		}
		if digits, i = i, skipDigits(c.b, i); i == digits {
			return c.failAt(i, wantDigit)
		}
	}
	return i
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (c *checker) array(i int) int {
	if c.left--; c.left < 0 {
		return c.failAt(i, tooDeep)
	}
	i = skipSpace(c.b, i+1)
	if i < len(c.b) && c.b[i] == ']' {
		c.left++
		return i + 1
	}
	for {
		if i = c.value(i); i < 0 {
			return i
		}
		i = skipSpace(c.b, i)
		if i >= len(c.b) {
			return c.failAt(i, cutShort)
		}
		switch c.b[i] {
		case ',':
			i = skipSpace(c.b, i+1)
		case ']':
			c.left++
			return i + 1
		default:
			return c.failAt(i, wantInArray)
		}
	}
}

func (c *checker) object(i int) int {
	if c.left--; c.left < 0 {
		return c.failAt(i, tooDeep)
	}
	base := c.keys.n
	var many map[string]struct{} // replaces the stack in a large object
	i = skipSpace(c.b, i+1)
	if i < len(c.b) && c.b[i] == '}' {
		c.left++
		return i + 1
	}
	for {
		if i >= len(c.b) || c.b[i] != '"' {
			return c.failAt(i, wantKey)
		}
		end, escaped := c.string(i)
		if end < 0 {
			return end
		}
		if many == nil && c.keys.n-base == smallObject {
			many = c.spill(base)
		}
		if c.seen(span{i + 1, end - 1, escaped}, base, many) {
			return c.failAt(i, sameKey)
		}
		if i = skipSpace(c.b, end); i >= len(c.b) || c.b[i] != ':' {
			return c.failAt(i, wantColon)
		}
		if i = c.value(skipSpace(c.b, i+1)); i < 0 {
			return i
		}
		i = skipSpace(c.b, i)
		if i >= len(c.b) {
			return c.failAt(i, cutShort)
		}
		switch c.b[i] {
		case ',':
			i = skipSpace(c.b, i+1)
		case '}':
			c.left++
			c.keys.n = base
			return i + 1
		default:
			return c.failAt(i, wantInObject)
		}
	}
}

// string parses the string that starts at i and reports whether it contains escapes.
func (c *checker) string(i int) (end int, escaped bool) {
	b := c.b
	for i++; ; {
		i = skipPlain(b, i)
		switch {
		case i >= len(b):
			return c.failAt(i, cutShort), false
		case b[i] == '"':
			return i + 1, escaped
		case b[i] == '\\':
			escaped = true
			_, n := unescape(b, i)
			if n < 0 {
				return c.failAt(i, badEscape), false
			}
			i = n
		case b[i] < ' ':
			return c.failAt(i, control), false
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return c.failAt(i, notUTF8), false
			}
			i += n
		}
	}
}

const (
	each80 = 0x8080808080808080
	each01 = 0x0101010101010101
)

// skipPlain returns the position of the next byte that needs a check: a quote, a backslash, a control
// character or the start of a character beyond ASCII. It tests eight bytes at a time; a borrow can only
// set a flag above a true one.
func skipPlain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^('"'*each01), x^('\\'*each01)
		if (x|(x-' '*each01)|(quote-each01)|(slash-each01))&each80 != 0 {
			break
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] < utf8.RuneSelf && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}
