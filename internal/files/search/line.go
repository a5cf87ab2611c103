package search

import "bytes"

// matchLine finds the next line of b that matches, from a position at the beginning
// of a line: where it begins and ends, without its line ending, and where the
// next one begins. Positions never go back within one text.
func (m *matcher) matchLine(b []byte, from int) (begin, end, next int, ok bool) {
	for from < len(b) {
		at := from
		switch {
		case m.find != nil:
			at = m.find.findFrom(b, from)
		case m.auto != nil:
			var fine bool
			if at, fine = m.auto.stopAt(b, from); !fine {
				m.auto = nil
				continue
			}
		}
		if at < 0 {
			break
		}
		begin, end, next = lineAround(b, from, at, m.p.returns)
		if m.holds(b[begin:end], end < len(b) && b[end] == '\r') {
			return begin, end, next, true
		}
		from = next
	}
	return 0, 0, 0, false
}

// lineAround is the line at a position, which may be that of its newline, and
// where the next one begins. It does not look before from. The line ending is
// left out, with returns only the newline.
func lineAround(b []byte, from, at int, returns bool) (begin, end, next int) {
	begin = from + bytes.LastIndexByte(b[from:at], '\n') + 1
	end = len(b)
	next = len(b)
	if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
		end = at + i
		next = end + 1
	}
	if end > begin && b[end-1] == '\r' && !returns {
		end--
	}
	return begin, end, next
}

// holds reports whether a line the search stopped at does match. cut says that
// a carriage return was cut off, which the automaton has seen if it found the
// line by itself.
func (m *matcher) holds(line []byte, cut bool) bool {
	if m.p.plain {
		return true
	}
	if m.auto != nil && m.find != nil {
		// Nearly as quick as memchr, and most lines with a literal fail here.
		at, fine := m.auto.stopAt(line, 0)
		if !fine {
			m.auto = nil
		} else if at < 0 {
			return false
		}
		cut = false
	}
	if !cut && m.auto != nil && len(line) < 4096 && isPlain(line) {
		return true // the automaton is exact
	}
	return m.p.re.Match(line)
}

// isPlain reports whether a line is ASCII without carriage returns.
func isPlain(line []byte) bool {
	for _, c := range line {
		if c >= 0x80 || c == '\r' {
			return false
		}
	}
	return true
}
