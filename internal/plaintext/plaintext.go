// Package plaintext makes what others wrote safe to show to a person: on a
// terminal, in a question, in a list of tools.
//
// Control characters steer terminals, and characters that change the direction
// of text or cannot be seen make one text look like another. They are shown as
// JSON would escape them.
package plaintext

import (
	"fmt"
	"strings"
	"unicode/utf16"
)

// Text shows what would steer a terminal or deceive its reader as \uXXXX. Line
// breaks and tabs stay.
func Text(s string) string { return escape(s, func(r rune) bool { return r == '\n' || r == '\t' }) }

// Line is Text on one line: line breaks and tabs are shown as well.
func Line(s string) string { return escape(s, func(rune) bool { return false }) }

// JSON escapes the same within JSON, which stays the same value. It must be
// valid.
func JSON[T ~[]byte](b T) T {
	return T(escape(string(b), func(r rune) bool { return r < ' ' })) // between values; strings hold none
}

// Deceives reports whether a character steers a terminal or cannot be seen, and
// so does not belong in a name or a title.
func Deceives(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r <= 0x9f: // C0, delete, C1
	case r == 0xad, r == 0x34f, r == 0x61c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x180e, r == 0x3164, r == 0xffa0: // invisible
	case r == 0x200b, r >= 0x200e && r <= 0x200f: // not the joiners, which scripts need
	case r >= 0x2028 && r <= 0x202e: // lines, paragraphs, direction
	case r >= 0x2060 && r <= 0x206f: // invisible operators, isolates
	case r == 0xfeff, r >= 0xfff0 && r <= 0xfffb:
	case r >= 0xe0000 && r <= 0xe0fff: // tags, which spell text that cannot be seen
	default:
		return false
	}
	return true
}

func escape(s string, keep func(rune) bool) string {
	at := strings.IndexFunc(s, func(r rune) bool { return Deceives(r) && !keep(r) })
	if at < 0 {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:at])
	for _, r := range s[at:] {
		switch hi, lo := utf16.EncodeRune(r); {
		case !Deceives(r) || keep(r):
			b.WriteRune(r)
		case hi != 0xfffd:
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
