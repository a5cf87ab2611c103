package displaytext

import (
	"strings"
	"unicode"
)

// Visible returns text that is safe to display: invalid UTF-8 is marked, and control characters except line
// ends and tabs are replaced by symbols.
func Visible(b []byte) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return r
		case r < 0x20:
			return 0x2400 + r
		case r == 0x7f:
			return 0x2421
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(string(b), "\uFFFD"))
}
