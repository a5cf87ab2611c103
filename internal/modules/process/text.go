package process

import (
	"strings"
	"unicode/utf8"
)

// visible returns output as text, with each byte that is not UTF-8 as \xNN.
func visible(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	const hex = "0123456789abcdef"
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			s.WriteString(`\x`)
			s.WriteByte(hex[b[0]>>4])
			s.WriteByte(hex[b[0]&15])
		} else {
			s.Write(b[:n])
		}
		b = b[n:]
	}
	return s.String()
}
