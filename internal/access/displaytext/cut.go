package displaytext

import "unicode/utf8"

// Cut returns a text unchanged if it has at most so many bytes. Otherwise it returns the longest
// beginning of whole characters that fits together with mark, followed by mark.
func Cut(s string, most int, mark string) string {
	n := max(most, 0)
	if len(s) <= n {
		return s
	}
	for i := n; i >= 0 && i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i] + mark
		}
	}
	return s[:n] + mark // not UTF-8 at this position, so no character is cut
}

// Whole returns the number of bytes of b before a character that its end cuts off. It is len(b) if no
// character is cut off.
func Whole(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if utf8.FullRune(b[i:]) {
				return len(b)
			}
			return i
		}
	}
	return len(b)
}
