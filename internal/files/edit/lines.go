package edit

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// text is a file that edits are looked for in. It is used by one goroutine.
type text struct {
	name     string
	content  []byte
	newlines []int    // their bytes; nil until first used
	without  levelSet // levels that are not tried; only TestLevels sets it

	// For the tolerant levels; nil until prepare.
	lines  []line
	keys   string // the keys of the lines that are not blank, each with a newline
	starts []int  // where each key begins in keys
	full   []int  // the line of each key
	unit   string // one step of indentation, "" if there is none
}

// line is a line in the four parts that edits treat differently. Blanks are
// spaces of all kinds. In a blank line all of them are indent.
type line struct {
	at     int // the byte it begins at
	indent string
	body   string
	trail  string
	eol    string // "\n", "\r\n" or, on the last line, ""
}

func (l line) blank() bool      { return l.body == "" }
func (l line) lineText() string { return l.indent + l.body + l.trail }
func (l line) end() int {
	return l.at + len(l.indent) + len(l.body) + len(l.trail) + len(l.eol)
}

// split splits a text into lines. A text that ends in a newline has no line
// after it.
func split(s string) []line {
	lines := make([]line, 0, strings.Count(s, "\n")+1)
	for at := 0; at < len(s); {
		raw := s[at:]
		next := len(s)
		if i := strings.IndexByte(raw, '\n'); i >= 0 {
			raw = raw[:i+1]
			next = at + i + 1
		}
		l := cut(raw)
		l.at = at
		lines = append(lines, l)
		at = next
	}
	return lines
}

// cut splits one line, with its line ending, into its parts.
func cut(raw string) (l line) {
	if s, ok := strings.CutSuffix(raw, "\r\n"); ok {
		raw, l.eol = s, "\r\n"
	} else if s, ok := strings.CutSuffix(raw, "\n"); ok {
		raw, l.eol = s, "\n"
	}
	rest := strings.TrimLeftFunc(raw, isBlank)
	l.indent = raw[:len(raw)-len(rest)]
	l.body = strings.TrimRightFunc(rest, isBlank)
	l.trail = rest[len(l.body):]
	return l
}

// isBlank reports whether a character is a space of any kind but a line break.
func isBlank(r rune) bool {
	return r == ' ' || r == '\t' ||
		(r >= utf8.RuneSelf && (unicode.Is(unicode.Zs, r) || r == '\uFEFF' || r == '\u200B'))
}

// splitOnce splits the file into lines and makes their keys, once.
func (t *text) splitOnce() {
	if t.lines != nil {
		return
	}
	s := string(t.content)
	mark := 0
	if strings.HasPrefix(s, bom) {
		mark = len(bom)
	}
	t.lines = split(s[mark:])
	var keys strings.Builder
	keys.Grow(len(s))
	for i := range t.lines {
		l := &t.lines[i]
		l.at += mark
		if l.blank() {
			continue
		}
		t.starts = append(t.starts, keys.Len())
		t.full = append(t.full, i)
		keys.WriteString(fold(l.body))
		keys.WriteByte('\n')
	}
	t.keys = keys.String()
	t.unit = unitOf(t.lines)
}

// unitOf returns one step of indentation: a tab if tabs begin most indented
// lines, else as many spaces as a line is most often deeper than the line before
// it.
func unitOf(lines []line) string {
	tabs, spaces, before := 0, 0, 0
	var steps [9]int
	for _, l := range lines {
		if l.blank() {
			continue
		}
		n := len(l.indent)
		switch {
		case n > 0 && l.indent[0] == '\t':
			tabs++
		case n > 0:
			spaces++
		}
		if d := n - before; d > 0 && d < len(steps) {
			steps[d]++
		}
		before = n
	}
	switch {
	case tabs == 0 && spaces == 0:
		return ""
	case tabs >= spaces:
		return "\t"
	}
	best := 4
	for _, d := range []int{2, 4, 8, 3} {
		if steps[d] > steps[best] {
			best = d
		}
	}
	return strings.Repeat(" ", best)
}

// keyAt returns the line, as an index of full, whose key covers a byte of keys.
func (t *text) keyAt(at int) int {
	i, ok := slices.BinarySearch(t.starts, at)
	if !ok {
		i--
	}
	return i
}
