package symbols

import "bytes"

// withoutBodies returns Go source whose function bodies and composite literals are blank, with the same lines and
// offsets, because parsing them takes most of the time and memory of a file, and they hold no symbols. A body that does
// not end stays, with what follows it.
func withoutBodies(text []byte) []byte {
	out := bytes.Clone(text)
	isType := false // the word before is struct or interface, so that a brace begins fields or methods
	for i := 0; i < len(text); {
		if end := skipLiteral(text, i); end > i {
			isType = isType && text[i] == '/'
			i = end
			continue
		}
		switch c := text[i]; {
		case isLetter(c):
			from := i
			for i < len(text) && isLetter(text[i]) {
				i++
			}
			word := text[from:i]
			isType = string(word) == "struct" || string(word) == "interface"
			continue
		case c == '{' && !isType:
			end := bodyEnd(text, i)
			if end < 0 {
				return out
			}
			for j := i + 1; j < end; j++ {
				if out[j] != '\n' {
					out[j] = ' '
				}
			}
			i = end
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			isType = false
		}
		i++
	}
	return out
}

// bodyEnd returns the offset of the brace that closes the one at i, or -1.
func bodyEnd(text []byte, i int) int {
	for depth := 0; i < len(text); {
		if end := skipLiteral(text, i); end > i {
			i = end
			continue
		}
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
		i++
	}
	return -1
}

// skipLiteral returns the offset after the comment, string or rune that begins at i, or i if none does.
func skipLiteral(text []byte, i int) int {
	after := func(from int, sign string) int {
		if n := bytes.Index(text[from:], []byte(sign)); n >= 0 {
			return from + n + len(sign)
		}
		return len(text)
	}
	switch c := text[i]; {
	case c == '`':
		return after(i+1, "`")
	case c == '/' && i+1 < len(text) && text[i+1] == '/':
		return after(i, "\n")
	case c == '/' && i+1 < len(text) && text[i+1] == '*':
		return after(i+2, "*/")
	case c == '"' || c == '\'':
		for i++; i < len(text) && text[i] != c && text[i] != '\n'; i++ {
			if text[i] == '\\' {
				i++
			}
		}
		return min(i+1, len(text))
	}
	return i
}

// isLetter reports whether a byte is part of an ASCII identifier.
func isLetter(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '_'
}
