package publicstate

import (
	"fmt"
	"strings"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// pointerOf reads an address below gatehouse:///public. Each part of the tree
// has exactly one: characters a path may hold stand for themselves, all others
// are percent-encoded in upper case, and a slash in a name is ~1. Whatever else
// would mean the same is refused, so that who compares addresses compares
// parts of the tree.
func pointerOf(uri string) (state.Pointer, error) {
	rest, ok := strings.CutPrefix(uri, PublicURI)
	if !ok || rest != "" && rest[0] != '/' {
		return nil, absent(uri)
	}
	text, err := decoded(rest)
	if err != nil {
		return nil, bad(uri, err)
	}
	p, err := state.ParsePointer("/public" + text)
	if err != nil {
		return nil, bad(uri, err)
	}
	return p, nil
}

func bad(uri string, err error) *tool.Refusal {
	return &tool.Refusal{
		Code: "invalid_arguments", Message: fmt.Sprintf("%.300q is no address of a part of the tree: %v", uri, err),
		Next: "Append a JSON Pointer to " + PublicURI + "; percent-encode in upper case, and only what a path cannot hold.",
	}
}

// plain are the characters that stand for themselves, besides letters and
// digits: those of a path's segment, and the slash.
const plain = "-._~!$&'()*+,;=:@/"

func isPlain(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte(plain, b) >= 0
}

const hex = "0123456789ABCDEF"

func decoded(s string) (string, error) {
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
			return "", fmt.Errorf("a %% stands alone")
		}
		high, low := strings.IndexByte(hex, s[i+1]), strings.IndexByte(hex, s[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("%q is no character", s[i:i+3])
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

// encoded writes a pointer's text as it stands in an address.
func encoded(text string) string {
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
