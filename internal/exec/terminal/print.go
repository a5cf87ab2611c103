package terminal

import (
	"slices"
	"unicode"

	"golang.org/x/text/width"
)

// drawing are the line drawing characters, from ` on.
var drawing = [...]rune{
	'◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺', '⎻', '─', '⎼', '⎽', '├', '┤', '┴',
	'┬', '│',
	'≤', '≥', 'π', '≠', '£', '·',
}

// maxAccents limits the combining characters of one cell, in bytes.
const maxAccents = 32

// runeWidth returns the number of columns of a character: 0, 1 or 2.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1f300 && r <= 0x1faff:
		return 2
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// print writes one character at the cursor.
func (s *Screen) print(r rune) {
	p := &s.main
	if (p.g0 && !p.shift || p.g1 && p.shift) && r >= '`' && r <= '~' {
		r = drawing[r-'`']
	}
	w := runeWidth(r)
	if w == 0 {
		s.combine(r)
		return
	}
	if w > s.cols {
		r, w = unicode.ReplacementChar, 1
	}
	if s.wrap && (p.full || p.x+w > s.cols) {
		p.x, p.full = 0, false
		s.feed()
	}
	x := min(p.x, s.cols-w)
	line := p.lines[p.y]
	if s.insert {
		s.shiftRight(line, x, min(w, s.cols-x))
	}
	mend(line, x)
	mend(line, x+w)
	line[x] = cell{r: r}
	if w == 2 {
		line[x+1] = cell{r: wide}
	}
	s.last = r
	if p.x = x + w; p.x >= s.cols {
		p.x, p.full = s.cols-1, s.wrap
	}
}

// combine adds a combining character to the character before the cursor.
func (s *Screen) combine(r rune) {
	p := &s.main
	x := p.x - 1
	if p.full {
		x = p.x
	}
	line := p.lines[p.y]
	if x > 0 && line[x].r == wide {
		x--
	}
	if x >= 0 && len(line[x].accents) < maxAccents {
		line[x].accents += string(r)
	}
}

// feed moves the cursor down a line, and scrolls at the end of the region.
func (s *Screen) feed() {
	p := &s.main
	p.full = false
	switch {
	case p.y == s.bottom:
		s.scroll(s.top, s.bottom, 1)
	case p.y < s.rows-1:
		p.y++
	}
}

// feedBack moves the cursor up a line, and scrolls at the beginning of the region.
func (s *Screen) feedBack() {
	p := &s.main
	p.full = false
	switch {
	case p.y == s.top:
		s.scroll(s.top, s.bottom, -1)
	case p.y > 0:
		p.y--
	}
}

// scroll moves the lines from top to bottom up by n, or down.
func (s *Screen) scroll(top, bottom, n int) {
	lines := s.main.lines[top : bottom+1]
	k := min(max(n, -n), len(lines))
	gone := lines[:k] // which become the new ones at the other end
	if n < 0 {
		gone = lines[len(lines)-k:]
	}
	for _, l := range gone {
		empty(l)
	}
	if n < 0 {
		k = len(lines) - k
	}
	slices.Reverse(lines[:k])
	slices.Reverse(lines[k:])
	slices.Reverse(lines)
}
