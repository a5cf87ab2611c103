// Package displaytext makes untrusted text safe to show to a person: on a terminal, in a question, in a
// list of tools.
//
// Control characters can control a terminal, and characters that change the direction of text or are
// invisible make one text look like another. They are shown as JSON escapes.
package displaytext

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Text returns s with characters that could control a terminal or deceive its reader as \uXXXX. Line
// breaks and tabs stay.
func Text(s string) string { return escape(s, func(r rune) bool { return r == '\n' || r == '\t' }) }

// Line is Text on one line: line breaks and tabs are escaped as well.
func Line(s string) string { return escape(s, func(rune) bool { return false }) }

// JSON escapes the same characters within JSON, which keeps its value. b must be valid.
func JSON[T ~[]byte](b T) T {
	// only white space between values, because strings hold no raw control characters
	return T(escape(string(b), func(r rune) bool { return r < ' ' }))
}

// Described returns JSON in which the members called description and title are escaped as Text does, at
// every depth. All other bytes stay unchanged. b must be valid.
func Described[T ~[]byte](b T) T {
	var out []byte // nil while nothing was changed
	from, key := 0, ""
	for i := 0; i < len(b); i++ {
		if b[i] != '"' {
			if b[i] != ':' && b[i] > ' ' {
				key = ""
			}
			continue
		}
		end := i + 1
		for end < len(b) && b[end] != '"' {
			if b[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(b) {
			break
		}
		var text string
		if json.Unmarshal(b[i:end+1], &text) != nil {
			break
		}
		if shown := Text(text); (key == "description" || key == "title") && shown != text {
			quoted, err := json.Marshal(shown)
			if err == nil {
				out = append(append(out, b[from:i]...), quoted...)
				from = end + 1
			}
		}
		key, i = text, end
	}
	if out == nil {
		return b
	}
	return append(out, b[from:]...)
}

// Deceives reports whether a character can control a terminal or is invisible, and so does not belong
// in a name or a title.
func Deceives(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r <= 0x9f: // C0, delete, C1
	case r == 0xad,
		r == 0x34f,
		r == 0x61c,
		r == 0x115f,
		r == 0x1160,
		r == 0x17b4,
		r == 0x17b5,
		r == 0x180e,
		r == 0x3164,
		r == 0xffa0: // invisible
	case r == 0x200b, r >= 0x200e && r <= 0x200f: // not the joiners, which some scripts need
	case r >= 0x2028 && r <= 0x202e: // lines, paragraphs, direction
	case r >= 0x2060 && r <= 0x206f: // invisible operators, isolates
	case r == 0xfeff, r >= 0xfff0 && r <= 0xfffb:
	case r >= 0xe0000 && r <= 0xe0fff: // tags, which spell invisible text
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
