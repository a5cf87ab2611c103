package terminal

// Plain removes what a terminal does not show: control sequences, strings such
// as titles, and the carriage return at the end of a line.
func Plain(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == 0x1b:
			i += sequence(b[i:]) - 1
		case c == '\r' && i+1 < len(b) && b[i+1] == '\n', c < 0x20 && c != '\n' && c != '\r' && c != '\t' &&
			c != '\b', c == 0x7f:
		default:
			out = append(out, c)
		}
	}
	return out
}

// sequence returns the length of the control sequence at the beginning of b, or
// len(b) if its end is missing.
func sequence(b []byte) int {
	if len(b) < 2 {
		return len(b)
	}
	switch b[1] {
	case '[':
		for i := 2; i < len(b); i++ {
			if b[i] >= '@' && b[i] <= '~' {
				return i + 1
			}
		}
		return len(b)
	case ']', 'P', 'X', '^', '_':
		for i := 2; i < len(b); i++ {
			if b[i] == 7 {
				return i + 1
			}
			if b[i] == 0x1b {
				return min(i+2, len(b))
			}
		}
		return len(b)
	case '(', ')', '*', '+', '#', '%', ' ':
		return min(3, len(b))
	}
	return 2
}
