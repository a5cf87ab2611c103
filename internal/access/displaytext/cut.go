package displaytext

import "unicode/utf8"

// Cut returns a text of at most so many bytes as it is. Of a longer one it
// returns the beginning that fits, which ends with a whole character, with mark
// behind it to say so.
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
	return s[:n] + mark // it is no UTF-8 there, so that there is no character to cut
}

// Whole is how many bytes of b there are before a character that its end cuts
// off. It is len(b) if there is none.
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
