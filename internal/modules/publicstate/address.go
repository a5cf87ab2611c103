package publicstate

import (
	"fmt"
	"strings"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// pointerOf returns the pointer of an address below gatehouse:///public. Each part
// of the tree has exactly one address: characters that are allowed in a path
// stand for themselves, all others are percent-encoded in upper case, and a
// slash in a name is ~1. Other spellings are refused, so that addresses can be
// compared as strings.
func pointerOf(uri string) (state.Pointer, error) {
	rest, ok := strings.CutPrefix(uri, PublicURI)
	if !ok || rest != "" && rest[0] != '/' {
		return nil, errNotFound(uri)
	}
	text, err := decodeURI(rest)
	if err != nil {
		return nil, errAddress(uri, err)
	}
	p, err := state.ParsePointer("/public" + text)
	if err != nil {
		return nil, errAddress(uri, err)
	}
	return p, nil
}

func errAddress(uri string, err error) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeInvalidArguments,
		Message: fmt.Sprintf("%.300q is not an address of a part of the state tree: %v", uri, err),
		Next: "Append a JSON Pointer to " + PublicURI + "; percent-encode in upper case, and only characters not " +
			"allowed in a path.",
	}
}

// plain are the characters, besides letters and digits, that stand for
// themselves: those of a path segment, and the slash.
const plain = "-._~!$&'()*+,;=:@/"

func isPlain(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte(plain, b) >= 0
}

const hex = "0123456789ABCDEF"

func decodeURI(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			if !isPlain(s[i]) {
				return "", fmt.Errorf("%q must be percent-encoded", s[i])
			}
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("a %% without two hexadecimal digits")
		}
		high, low := strings.IndexByte(hex, s[i+1]), strings.IndexByte(hex, s[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("%q is not a percent-encoded byte", s[i:i+3])
		}
		c := byte(high<<4 | low)
		if isPlain(c) {
			return "", fmt.Errorf("%q must be written as %q", s[i:i+3], c)
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String(), nil
}

// encodeURI returns the text of a pointer in the form of an address.
func encodeURI(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
