package rawjson

import (
	"unicode/utf16"
	"unicode/utf8"
)

// AppendString appends s as a JSON string. It escapes only what must be escaped; each invalid byte
// becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	at := len(dst)
	dst = append(dst, s...)
	same := skipPlain(dst, at) - at // nearly always the whole rest
	if same == len(s) {
		return append(dst, '"')
	}
	dst = dst[:at]
	from := 0
	for i := same; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[from:i]...)
				dst = append(dst, "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		dst = append(dst, s[from:i]...)
		dst = appendEscape(dst, c)
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// Compact appends src without the white space between its tokens, so that it contains no newline. dst
// and src must not overlap, but dst may be src[:0].
func Compact(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		switch c := src[i]; {
		case isSpace(c):
			i++
		case c == '"':
			end := skipString(src, i)
			if end < 0 {
				end = len(src)
			}
			dst = append(dst, src[i:end]...)
			i = end
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}

// unescape decodes the escape that starts at b[i] and returns the position after it, -1 if it is not
// valid. A surrogate pair is one escape; a lone surrogate is not valid.
func unescape(b []byte, i int) (r rune, next int) {
	if i+1 >= len(b) {
		return 0, -1
	}
	switch c := b[i+1]; c {
	case '"', '\\', '/':
		return rune(c), i + 2
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
		return unescapeHex(b, i)
	}
	return 0, -1
}

func unescapeHex(b []byte, i int) (r rune, next int) {
	r = hex4(b, i+2)
	if r < 0 {
		return 0, -1
	}
	if !utf16.IsSurrogate(r) {
		return r, i + 6
	}
	if i+8 > len(b) || b[i+6] != '\\' || b[i+7] != 'u' {
		return 0, -1
	}
	r = utf16.DecodeRune(r, hex4(b, i+8))
	if r == utf8.RuneError {
		return 0, -1
	}
	return r, i + 12
}

// hex4 parses four hexadecimal digits; it returns -1 if they are missing.
func hex4(b []byte, i int) (r rune) {
	if i+4 > len(b) {
		return -1
	}
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// appendDecoded appends the decoded text of a string's body.
func appendDecoded(dst, body []byte) ([]byte, bool) {
	for i := 0; i < len(body); {
		if body[i] != '\\' {
			dst = append(dst, body[i])
			i++
			continue
		}
		r, n := unescape(body, i)
		if n < 0 {
			return dst, false
		}
		dst = utf8.AppendRune(dst, r)
		i = n
	}
	return dst, true
}

// decodesTo reports whether a string's body decodes to s.
func decodesTo(body []byte, s string) bool {
	for i := 0; i < len(body); {
		if body[i] != '\\' {
			if s == "" || body[i] != s[0] {
				return false
			}
			i, s = i+1, s[1:]
			continue
		}
		r, next := unescape(body, i)
		if next < 0 {
			return false
		}
		var buf [utf8.UTFMax]byte
		n := utf8.EncodeRune(buf[:], r)
		if len(s) < n || string(buf[:n]) != s[:n] {
			return false
		}
		i, s = next, s[n:]
	}
	return s == ""
}
