package terminal

import (
	"strings"
	"unicode"
)

// state is the parser's position within a sequence.
type state uint8

const (
	ground  state = iota
	escape        // after ESC
	charset       // after ESC and an intermediate, such as (
	control       // in a control sequence, after ESC [
	title         // in a string that is kept, after ESC ]
	skipped       // in a string that is not, after ESC P, X, ^ or _
)

// step processes a byte that is not part of a multi-byte character.
func (s *Screen) step(b byte) {
	inString := s.state == title || s.state == skipped
	switch {
	case b == 0x1b:
		if s.state == title {
			s.command()
		}
		s.setState(escape)
	case b == 0x18 || b == 0x1a: // CAN and SUB break off
		s.setState(ground)
	case inString:
		s.inString(b)
	case b < 0x20:
		s.c0(b)
	case b == 0x7f:
	case s.state == ground:
		s.print(rune(b))
	case s.state == escape:
		s.escaped(b)
	case s.state == charset:
		s.chooseSet(b)
	default:
		s.inControl(b)
	}
}

func (s *Screen) setState(st state) {
	s.state = st
	s.params, s.private, s.middle, s.text = s.params[:0], 0, 0, s.text[:0]
}

// inString collects the text of a string until BEL or ESC \.
func (s *Screen) inString(b byte) {
	switch {
	case b == 7:
		if s.state == title {
			s.command()
		}
		s.setState(ground)
	case s.state == title && len(s.text) < maxSequence:
		s.text = append(s.text, b)
	}
}

// command executes an ESC ] string; only titles have an effect.
func (s *Screen) command() {
	kind, text, _ := strings.Cut(string(s.text), ";")
	if kind != "0" && kind != "2" {
		return
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if r := []rune(text); len(r) > maxTitle {
		text = string(r[:maxTitle])
	}
	s.title = text
}

// c0 executes a control character, also within a sequence, as terminals do.
func (s *Screen) c0(b byte) {
	p := &s.main
	switch b {
	case 7:
		s.bell++
	case 8:
		p.x, p.full = max(min(p.x, s.cols-1)-1, 0), false
	case 9:
		s.tab(1)
	case 10, 11, 12:
		s.feed()
		if s.newline {
			p.x = 0
		}
	case 13:
		p.x, p.full = 0, false
	case 14:
		p.shift = true
	case 15:
		p.shift = false
	}
}

// escaped executes the sequence of ESC and one character.
func (s *Screen) escaped(b byte) {
	s.setState(ground)
	switch b {
	case '[':
		s.setState(control)
	case ']':
		s.setState(title)
	case 'P', 'X', '^', '_':
		s.setState(skipped)
	case '(', ')', '*', '+', '-', '.', '/', '#', '%', ' ':
		s.setState(charset)
		s.middle = b
	case '7':
		s.main.saved = s.main.cursor
	case '8':
		s.main.cursor = s.main.saved
	case 'c':
		s.reset()
	case 'D':
		s.feed()
	case 'E':
		s.feed()
		s.main.x = 0
	case 'M':
		s.feedBack()
	case 'H':
		s.tabs[min(s.main.x, s.cols-1)] = true
	}
}

// chooseSet executes the sequence of ESC, an intermediate and a character.
func (s *Screen) chooseSet(b byte) {
	switch s.middle {
	case '(':
		s.main.g0 = b == '0'
	case ')':
		s.main.g1 = b == '0'
	case '#':
		if b == '8' {
			s.align()
		}
	}
	s.setState(ground)
}

// align fills the screen with E, the adjustment pattern of the VT100.
func (s *Screen) align() {
	for _, l := range s.main.lines {
		for i := range l {
			l[i] = cell{r: 'E'}
		}
	}
	s.main.x, s.main.y, s.main.full = 0, 0, false
}

// inControl collects a control sequence and executes it at its final byte.
func (s *Screen) inControl(b byte) {
	switch {
	case b >= '0' && b <= '9':
		if len(s.params) == 0 {
			s.params = append(s.params, 0)
		}
		last := &s.params[len(s.params)-1]
		*last = min(*last*10+int(b-'0'), maxNumber)
	case b == ';' || b == ':':
		if len(s.params) == 0 {
			s.params = append(s.params, 0)
		}
		if len(s.params) < maxParams {
			s.params = append(s.params, 0)
		}
	case b >= '<' && b <= '?':
		s.private = b
	case b < '0':
		s.middle = b
	case b >= '@':
		s.do(b)
		s.setState(ground)
	}
}

// param returns one number of a sequence; 0 and absent mean the default.
func (s *Screen) param(i, otherwise int) int {
	if i < len(s.params) && s.params[i] > 0 {
		return s.params[i]
	}
	return otherwise
}
