// Package terminal computes the screen of a terminal from the output of programs.
//
// It implements the functions of VT220 and xterm for text, cursor, scrolling and the alternate screen, which
// shells, editors and full-screen programs use. Colours and other attributes are ignored, because a screen is text
// here. Any input is safe: all sizes are limited and nothing is an error.
package terminal

import (
	"strings"
	"unicode/utf8"
)

// MaxSide is the largest number of columns or rows of a screen.
const MaxSide = 1000

const (
	maxSequence = 4096 // bytes of a control sequence or string that are kept
	maxParams   = 32
	maxNumber   = 1 << 16
	maxTitle    = 256
)

// blank is an empty cell, and wide the right half of a character of two columns.
const (
	blank = ' '
	wide  = 0
)

// Screen is the screen of a terminal. New creates one. It is not safe for concurrent use.
type Screen struct {
	// Reply receives the terminal's answers to queries, such as the cursor position; nil discards them. It is
	// called by Write.
	Reply func([]byte)

	cols, rows  int
	main, other page // other is the one that is not shown
	alternate   bool

	top, bottom int // of the region that scrolls; bottom is its last line
	wrap        bool
	insert      bool
	origin      bool // lines are counted from top
	newline     bool // a line feed also returns
	hidden      bool // the cursor
	appKeys     bool
	paste       bool
	tabs        []bool
	last        rune // for REP
	title       string
	bell        int

	state   state
	params  []int
	private byte // the ? > = of a control sequence
	middle  byte // its intermediate
	text    []byte
	partial []byte // of a character in UTF-8
}

// page is one of the two screens.
type page struct {
	lines [][]cell
	cursor
	saved cursor
}

// cell is a character with its combining characters.
type cell struct {
	r       rune
	accents string
}

// cursor is the position of the next character. full means that the last column was written and the next character
// wraps.
type cursor struct {
	x, y  int
	full  bool
	g0    bool // the first set of characters is line drawing
	g1    bool // the second is
	shift bool // the second is in force
}

// New returns an empty screen; both sides must be at least 1 and at most MaxSide.
func New(cols, rows int) *Screen {
	s := &Screen{cols: side(cols), rows: side(rows)}
	s.reset()
	return s
}

func side(n int) int { return min(max(n, 1), MaxSide) }

func (s *Screen) reset() {
	s.main, s.other = s.page(), s.page()
	s.alternate, s.insert, s.origin, s.newline, s.hidden, s.appKeys, s.paste = false, false, false, false, false, false,
		false
	s.wrap = true
	s.top, s.bottom = 0, s.rows-1
	s.title, s.last = "", 0
	s.setTabs()
}

func (s *Screen) page() page {
	p := page{lines: make([][]cell, s.rows)}
	for i := range p.lines {
		p.lines[i] = s.currentLine()
	}
	return p
}

func (s *Screen) currentLine() []cell {
	l := make([]cell, s.cols)
	empty(l)
	return l
}

func empty(l []cell) {
	for i := range l {
		l[i] = cell{r: blank}
	}
}

func (s *Screen) setTabs() {
	s.tabs = make([]bool, s.cols)
	for i := 8; i < s.cols; i += 8 {
		s.tabs[i] = true
	}
}

// Size returns the number of columns and rows.
func (s *Screen) Size() (cols, rows int) { return s.cols, s.rows }

// Cursor returns the position of the cursor, counted from 0, and whether it is visible.
func (s *Screen) Cursor() (col, row int, shown bool) {
	return min(s.main.x, s.cols-1), s.main.y, !s.hidden
}

// Title returns the window title that the program has set.
func (s *Screen) Title() string { return s.title }

// Alternate reports whether a full-screen program uses the screen.
func (s *Screen) Alternate() bool { return s.alternate }

// AppKeys reports whether the program expects the arrow keys as ESC O and not as ESC [.
func (s *Screen) AppKeys() bool { return s.appKeys }

// Bells returns how often the bell has rung.
func (s *Screen) Bells() int { return s.bell }

// Lines returns the text of the screen, without blanks at the ends of lines.
func (s *Screen) Lines() []string {
	out := make([]string, s.rows)
	for i, l := range s.main.lines {
		out[i] = strings.TrimRight(textOf(l), " ")
	}
	return out
}

func textOf(cells []cell) string {
	var b strings.Builder
	for _, c := range cells {
		if c.r != wide {
			b.WriteRune(c.r)
			b.WriteString(c.accents)
		}
	}
	return b.String()
}

// Shows reports whether a text is on the screen. Unlike Lines, it includes blanks before the cursor, because
// prompts end with one.
func (s *Screen) Shows(text string) bool {
	lines := s.Lines()
	x, y, _ := s.Cursor()
	if until := textOf(s.main.lines[y][:x]); len(until) > len(lines[y]) {
		lines[y] = until
	}
	return strings.Contains(strings.Join(lines, "\n"), text)
}

// String returns the text of the screen without the empty lines at its end.
func (s *Screen) String() string { return strings.TrimRight(strings.Join(s.Lines(), "\n"), "\n") }

// Resize changes the size. Lines are cut or extended, never wrapped again; lines that do not fit above the cursor's
// are lost from the top.
func (s *Screen) Resize(cols, rows int) {
	s.cols, s.rows = side(cols), side(rows)
	for _, p := range []*page{&s.main, &s.other} {
		s.fit(p)
	}
	s.top, s.bottom = 0, s.rows-1
	s.setTabs()
}

func (s *Screen) fit(p *page) {
	if over := p.y - s.rows + 1; over > 0 {
		p.lines = p.lines[over:]
		p.y -= over
	}
	lines := make([][]cell, s.rows)
	for i := range lines {
		lines[i] = s.currentLine()
		if i < len(p.lines) {
			copy(lines[i], p.lines[i])
			mend(lines[i], s.cols)
		}
	}
	p.lines = lines
	for _, c := range []*cursor{&p.cursor, &p.saved} {
		c.x, c.y, c.full = min(c.x, s.cols-1), min(c.y, s.rows-1), false
	}
}

// mend removes halves of wide characters at x: the one whose right half was overwritten, and the one whose left
// half was.
func mend(l []cell, x int) {
	if x < len(l) && l[x].r == wide {
		l[x] = cell{r: blank}
		if x > 0 {
			l[x-1] = cell{r: blank}
		}
	}
	if x == len(l) && x > 0 && runeWidth(l[x-1].r) == 2 {
		l[x-1] = cell{r: blank}
	}
}

// Write processes the output of a program. It never fails.
func (s *Screen) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if s.state != ground || b[0] < utf8.RuneSelf {
			if len(s.partial) > 0 {
				s.partial = s.partial[:0]
				s.print(utf8.RuneError)
			}
			s.step(b[0])
			b = b[1:]
			continue
		}
		b = s.decodeBytes(b)
	}
	return n, nil
}

// decodeBytes prints a multi-byte character when it is complete.
func (s *Screen) decodeBytes(b []byte) []byte {
	s.partial = append(s.partial, b[0])
	if !utf8.FullRune(s.partial) {
		return b[1:]
	}
	r, size := utf8.DecodeRune(s.partial)
	whole := size == len(s.partial)
	s.partial = s.partial[:0]
	s.print(r)
	if whole {
		return b[1:]
	}
	return b // its first byte broke the character off, and may begin another
}
