package reading

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// IsUTF16 reports whether a file that begins like this is text in UTF-16.
func IsUTF16(head []byte) bool {
	return bytes.HasPrefix(head, []byte("\xFF\xFE")) || bytes.HasPrefix(head, []byte("\xFE\xFF"))
}

// UTF16 decodes text that begins with a byte order mark, which is left out.
func UTF16(b []byte) []byte {
	if !IsUTF16(b) {
		return b
	}
	high, low := 1, 0
	if b[0] == 0xFE {
		high, low = 0, 1
	}
	text := make([]byte, 0, len(b)/2)
	for i := 2; i+1 < len(b); i += 2 {
		r := rune(b[i+high])<<8 | rune(b[i+low])
		if utf16.IsSurrogate(r) {
			second := rune(0)
			if i+3 < len(b) {
				second = rune(b[i+2+high])<<8 | rune(b[i+2+low])
			}
			if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
				i += 2
			}
		}
		text = utf8.AppendRune(text, r)
	}
	return text
}
