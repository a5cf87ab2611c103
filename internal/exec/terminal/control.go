package terminal

import "strconv"

// do executes a control sequence.
func (s *Screen) do(final byte) {
	switch {
	case s.private == 0 && s.middle == 0:
		if !s.move(final) && !s.changeMode(final) {
			s.rest(final)
		}
	case s.private == '?' && (final == 'h' || final == 'l'):
		for i := range s.params {
			s.mode(s.params[i], final == 'h')
		}
	case s.private == '?' && (final == 'J' || final == 'K'):
		s.changeMode(final)
	case s.private == '>' && final == 'c':
		s.reply("\x1b[>1;10;0c")
	case s.private == '?' && s.middle == '$' && final == 'p':
		s.reply("\x1b[?" + strconv.Itoa(s.param(0, 0)) + ";0$y") // nothing more is known of a mode
	case s.middle == '!' && final == 'p':
		s.soft()
	}
}

// soft resets the modes and keeps the text.
func (s *Screen) soft() {
	s.insert, s.origin, s.newline, s.hidden, s.appKeys, s.wrap = false, false, false, false, false, true
	s.top, s.bottom = 0, s.rows-1
	s.main.saved = cursor{}
	s.main.g0, s.main.g1, s.main.shift = false, false, false
}

// move executes the sequences that move the cursor.
func (s *Screen) move(final byte) bool {
	p, n := &s.main, s.param(0, 1)
	switch final {
	case 'A':
		s.vertical(-n)
	case 'B', 'e':
		s.vertical(n)
	case 'C', 'a':
		p.x = min(p.x+n, s.cols-1)
	case 'D':
		p.x = max(min(p.x, s.cols-1)-n, 0)
	case 'E':
		s.vertical(n)
		p.x = 0
	case 'F':
		s.vertical(-n)
		p.x = 0
	case 'G', '`':
		p.x = min(n, s.cols) - 1
	case 'd':
		s.goTo(p.x, n-1)
	case 'H', 'f':
		s.goTo(s.param(1, 1)-1, n-1)
	case 'I':
		s.tab(n)
	case 'Z':
		s.tab(-n)
	case 's':
		p.saved = p.cursor
		return true
	case 'u':
		p.cursor = p.saved
		return true
	default:
		return false
	}
	p.full = false
	return true
}

// vertical moves the cursor up or down; if it is in the scrolling region it stays there.
func (s *Screen) vertical(n int) {
	p, low, high := &s.main, 0, s.rows-1
	if p.y >= s.top {
		low = s.top
	}
	if p.y <= s.bottom {
		high = s.bottom
	}
	p.y = min(max(p.y+n, low), high)
}

// goTo moves to a column and line, counted from 0.
func (s *Screen) goTo(x, y int) {
	low, high := 0, s.rows-1
	if s.origin {
		low, high = s.top, s.bottom
	}
	s.main.x, s.main.y = min(max(x, 0), s.cols-1), min(max(y+low, low), high)
	s.main.full = false
}

// tab moves the cursor n tab stops forward or back.
func (s *Screen) tab(n int) {
	x := min(s.main.x, s.cols-1)
	for ; n > 0 && x < s.cols-1; n-- {
		for x++; x < s.cols-1 && !s.tabs[x]; x++ {
		}
	}
	for ; n < 0 && x > 0; n++ {
		for x--; x > 0 && !s.tabs[x]; x-- {
		}
	}
	s.main.x, s.main.full = x, false
}

// changeMode executes the sequences that change the display.
func (s *Screen) changeMode(final byte) bool {
	p, n := &s.main, s.param(0, 1)
	line, x := p.lines[p.y], min(p.x, s.cols-1)
	inside := p.y >= s.top && p.y <= s.bottom
	switch final {
	case '@':
		s.shiftRight(line, x, min(n, s.cols-x))
	case 'P':
		n = min(n, s.cols-x)
		mend(line, x)
		mend(line, x+n)
		copy(line[x:], line[x+n:])
		empty(line[s.cols-n:])
	case 'X':
		s.erase(p.y, x, x+n)
	case 'J':
		s.eraseScreen(s.param(0, 0))
	case 'K':
		from := [...]int{x, 0, 0}
		to := [...]int{s.cols, x + 1, s.cols}
		if k := s.param(0, 0); k < 3 {
			s.erase(p.y, from[k], to[k])
		}
	case 'L':
		if inside {
			s.scroll(p.y, s.bottom, -n)
			p.x = 0
		}
	case 'M':
		if inside {
			s.scroll(p.y, s.bottom, n)
			p.x = 0
		}
	case 'S':
		s.scroll(s.top, s.bottom, n)
	case 'T':
		s.scroll(s.top, s.bottom, -n)
	case 'b':
		for range min(n, s.cols*s.rows) {
			if s.last == 0 {
				break
			}
			s.print(s.last)
		}
		return true
	default:
		return false
	}
	p.full = false
	return true
}

func (s *Screen) shiftRight(line []cell, x, n int) {
	mend(line, x)
	mend(line, s.cols-n)
	copy(line[x+n:], line[x:s.cols-n])
	empty(line[x : x+n])
}

// erase empties a part of a line.
func (s *Screen) erase(y, from, to int) {
	line := s.main.lines[y]
	from, to = min(from, s.cols), min(to, s.cols)
	mend(line, from)
	mend(line, to)
	empty(line[from:to])
}

func (s *Screen) eraseScreen(what int) {
	p := &s.main
	x := min(p.x, s.cols-1)
	above, below := 0, s.rows
	switch what {
	case 0:
		s.erase(p.y, x, s.cols)
		above = p.y + 1
	case 1:
		s.erase(p.y, 0, x+1)
		below = p.y
	case 2:
	default:
		return
	}
	for y := above; y < below; y++ {
		s.erase(y, 0, s.cols)
	}
}

// rest executes the remaining sequences: modes, the region, queries.
func (s *Screen) rest(final byte) {
	switch final {
	case 'h', 'l':
		for _, m := range s.params {
			switch m {
			case 4:
				s.insert = final == 'h'
			case 20:
				s.newline = final == 'h'
			}
		}
	case 'r':
		top, bottom := s.param(0, 1)-1, min(s.param(1, s.rows), s.rows)-1
		if top < bottom {
			s.top, s.bottom = top, bottom
			s.goTo(0, 0)
		}
	case 'g':
		switch s.param(0, 0) {
		case 0:
			s.tabs[min(s.main.x, s.cols-1)] = false
		case 3:
			clear(s.tabs)
		}
	case 'c':
		s.reply("\x1b[?62c")
	case 'n':
		s.sendReport(s.param(0, 0))
	case 't':
		if s.param(0, 0) == 18 {
			s.reply("\x1b[8;" + strconv.Itoa(s.rows) + ";" + strconv.Itoa(s.cols) + "t")
		}
	}
}

func (s *Screen) sendReport(what int) {
	switch what {
	case 5:
		s.reply("\x1b[0n")
	case 6:
		x, y, _ := s.Cursor()
		if s.origin {
			y -= s.top
		}
		s.reply("\x1b[" + strconv.Itoa(y+1) + ";" + strconv.Itoa(x+1) + "R")
	}
}

func (s *Screen) reply(t string) {
	if s.Reply != nil {
		s.Reply([]byte(t))
	}
}

// mode sets or resets one of the modes of DEC and xterm.
func (s *Screen) mode(number int, on bool) {
	switch number {
	case 1:
		s.appKeys = on
	case 6:
		s.origin = on
		s.goTo(0, 0)
	case 7:
		s.wrap = on
	case 25:
		s.hidden = !on
	case 47, 1047:
		s.switchScreen(on, false)
	case 1048:
		if on {
			s.main.saved = s.main.cursor
		} else {
			s.main.cursor = s.main.saved
		}
	case 1049:
		s.switchScreen(on, true)
	case 2004:
		s.paste = on
	}
}

// switchScreen changes between the two pages. The alternate page is empty at first; with save the cursor is
// restored later.
func (s *Screen) switchScreen(alternate, save bool) {
	if s.alternate == alternate {
		return
	}
	if alternate && save {
		s.main.saved = s.main.cursor
	}
	at := s.main.cursor
	s.main, s.other = s.other, s.main
	s.alternate = alternate
	if alternate {
		s.main = s.page()
	}
	s.main.cursor = at
	if !alternate && save {
		s.main.cursor = s.main.saved
	}
}
