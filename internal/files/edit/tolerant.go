package edit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"gatehouse/tool"
)

// lineEdit is an edit prepared for the tolerant levels: old and new as lines,
// without the blank lines that both begin or end with.
type lineEdit struct {
	old, new   []line
	solid      []int  // indexes of the lines of old that are not blank
	key        string // their keys, with newlines between them
	startsLine bool   // the first solid line begins at the start of a line
	endsLine   bool   // the last solid line ends at the end of a line
	above      int    // number of blank lines removed before old; below: after it
	below      int
}

// newLineEdit prepares an edit. It returns false if old has nothing to look for.
func newLineEdit(old, new string) (w lineEdit, ok bool) {
	old, new = strings.TrimPrefix(old, bom), strings.TrimPrefix(new, bom)
	w.old, w.new = split(old), split(new)
	wholeBlank := func(ls []line) bool { return len(ls) > 0 && ls[0].blank() && ls[0].eol != "" }
	for wholeBlank(w.old) && wholeBlank(w.new) {
		w.old, w.new = w.old[1:], w.new[1:]
		w.above++
	}
	if w.above > 0 { // The first newline may end the line before, so the next line is whole.
		w.startsLine = true
	}
	w.below = w.dropBelow()
	if endsInIndent(w.old) || endsInIndent(w.new) {
		return w, false
	}
	var key strings.Builder
	for i, l := range w.old {
		if l.blank() {
			continue
		}
		if len(w.solid) == 0 {
			w.startsLine = w.startsLine || i > 0 || l.indent != ""
		} else {
			key.WriteByte('\n')
		}
		key.WriteString(fold(l.body))
		w.solid = append(w.solid, i)
	}
	w.key = key.String()
	if len(w.solid) == 0 {
		return w, false
	}
	last := w.solid[len(w.solid)-1]
	w.endsLine = last < len(w.old)-1 || w.old[last].eol != ""
	return w, strings.Trim(w.key, "\n") != ""
}

// dropBelow removes the blank lines that old and new both end with. It returns
// the number of those with a newline: a last one without is the beginning of the
// next line.
func (w *lineEdit) dropBelow() (whole int) {
	lastBlank := func(ls []line) bool { return len(ls) > 0 && ls[len(ls)-1].blank() }
	for lastBlank(w.old) && lastBlank(w.new) {
		o, n := w.old[len(w.old)-1], w.new[len(w.new)-1]
		if (o.eol == "") != (n.eol == "") {
			return whole
		}
		if o.eol != "" {
			whole++
		}
		w.old, w.new = w.old[:len(w.old)-1], w.new[:len(w.new)-1]
	}
	return whole
}

// endsInIndent reports whether a text ends with the indentation of a line.
func endsInIndent(ls []line) bool {
	return len(ls) > 0 && ls[len(ls)-1].blank() && ls[len(ls)-1].eol == ""
}

// candidate is a place of the file that an edit may mean.
type candidate struct {
	start    int    // its first byte in the file
	lines    []line // of the file; the first and the last may be parts of lines
	of       []int  // for each line of old its index in lines; -1 for none
	first    int    // number of the first line in the file, from 0
	shift    shift
	level    Level
	required levelSet // the levels after Newlines that it requires
	ended    bool     // the last line of old ends in a newline
	inside   bool     // the first line of old begins inside a line of the file
}

// findTolerant finds an edit at the levels from Trailing to Blanks.
func (t *text) findTolerant(e Edit) ([]place, Level, error) {
	w, ok := newLineEdit(e.Old, e.New)
	if !ok {
		return nil, 0, nil
	}
	t.splitOnce()
	spots, err := t.candidates(&w, e.All)
	if len(spots) == 0 {
		return nil, 0, err
	}
	level := spots[len(spots)-1].level
	if len(spots) > 1 && !e.All { // Choose first: a candidate that is not meant need not be clear.
		var places []place
		for _, s := range spots {
			places = append(places, place{start: s.start, end: s.end()})
		}
		chosen, _, err := t.choose(e, level, places)
		if err != nil {
			return nil, 0, err
		}
		for _, s := range spots {
			if s.start == chosen[0].start {
				spots, level = []*candidate{s}, s.level
				break
			}
		}
	}
	var places []place
	for _, s := range spots {
		p, err := t.project(&w, s)
		if err != nil {
			return nil, 0, err
		}
		places = append(places, p)
	}
	return places, level, nil
}

// require records that a candidate matches only at a level.
func (s *candidate) require(l Level) {
	s.level = max(s.level, l)
	s.required |= setOf(l) &^ setOf(Exact, Newlines)
}

// isCloserThan reports whether a candidate that requires the levels a is
// certainly closer to old than one that requires b: it requires fewer. Different
// indentation and a blank line more are not comparable. Trailing blanks do not
// count beside other differences.
func (a levelSet) isCloserThan(b levelSet) bool {
	trailing := setOf(Trailing)
	if a&^trailing != 0 || b&^trailing != 0 {
		a, b = a&^trailing, b&^trailing
	}
	return a != b && a&b == a
}

// maxCandidateLines bounds the lines that are compared, over all candidates of
// an edit.
const maxCandidateLines = 100_000

// candidates returns the candidates that no other is closer than, those of the
// lowest level first.
func (t *text) candidates(w *lineEdit, all bool) (best []*candidate, err error) {
	groups := map[levelSet][]*candidate{}
	looked := 0
	for _, at := range t.indexes([]byte(t.keys), w.key, all) {
		if looked += len(w.solid); looked > maxCandidateLines {
			return nil, &tool.Refusal{
				Code: tool.CodeAmbiguous,
				Message: fmt.Sprintf(
					"old_string is not in %s as it is, and similar text occurs too often to compare all of it",
					t.name,
				),
				Next: "Copy old_string exactly, with more lines around it.",
			}
		}
		if s, ok := t.candidateAt(w, at); ok && (s.required|setOf(s.level))&t.without == 0 {
			groups[s.required] = append(groups[s.required], s)
		}
	}
	for faults, group := range groups {
		beaten := false
		for other := range groups {
			beaten = beaten || other.isCloserThan(faults)
		}
		if !beaten {
			best = append(best, group...)
		}
	}
	slices.SortFunc(best, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.start, b.start))
	})
	return best, nil
}

// candidateAt compares the lines at an occurrence of the key with those of old.
func (t *text) candidateAt(w *lineEdit, at int) (*candidate, bool) {
	a := t.keyAt(at)
	b := a + len(w.solid) - 1
	if b >= len(t.full) || !t.bounded(w, at, t.starts[a]) {
		return nil, false
	}
	s := &candidate{first: t.full[a], level: Newlines, of: make([]int, len(w.old))}
	s.lines = append(s.lines, t.lines[t.full[a]:t.full[b]+1]...)
	for i := range s.of {
		s.of[i] = -1
	}
	// Old may begin and end inside a line of the file.
	last := len(s.lines) - 1
	end := at + len(w.key)
	if !w.endsLine && !s.trimEnd(last, end-t.starts[b]) {
		return nil, false
	}
	head := 0
	if at > t.starts[a] {
		if head = s.trimStart(at - t.starts[a]); head < 0 {
			return nil, false
		}
	}
	for i, o := range w.solid {
		s.of[o] = t.full[a+i] - s.first
	}
	s.matchBlanks(w)
	t.growBlanks(w, s)
	s.start = s.lines[0].at
	s.ended = w.old[len(w.old)-1].eol != ""
	s.inside = head > 0
	return s, s.findLevel(w, t)
}

// bounded reports whether an occurrence begins and ends at the end of a line or
// of a word.
func (t *text) bounded(w *lineEdit, at, start int) bool {
	end := at + len(w.key)
	switch {
	case at > start && (w.startsLine || inWord(t.keys, at)):
		return false
	case t.keys[end] != '\n' && (w.endsLine || inWord(t.keys, end)):
		return false
	}
	return true
}

// inWord reports whether a byte lies inside a word.
func inWord(s string, at int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:at])
	after, _ := utf8.DecodeRuneInString(s[at:])
	return wordRune(before) && wordRune(after)
}

// wordRune reports whether a character is part of a word.
func wordRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// rawAt returns how many bytes of a body have the first n bytes of its key; -1
// if n lies inside a cluster.
func rawAt(body string, n int) int {
	if isPlain(body) {
		return n
	}
	raw, key := 0, 0
	for _, c := range clusters(body) {
		if key >= n {
			break
		}
		raw += len(c.raw)
		key += len(c.key)
	}
	if key != n {
		return -1
	}
	return raw
}

// trimStart removes the first n bytes of the first line's key from the
// candidate. It returns the number of bytes removed, -1 if n lies inside a
// cluster.
func (s *candidate) trimStart(n int) int {
	l := &s.lines[0]
	raw := rawAt(l.body, n)
	if raw <= 0 {
		return -1
	}
	l.at += len(l.indent) + raw
	l.indent, l.body = "", l.body[raw:]
	if rest := strings.TrimLeftFunc(l.body, isBlank); rest != l.body {
		l.at += len(l.body) - len(rest)
		l.body = rest
	}
	return raw
}

// trimEnd keeps the first n bytes of the last line's key; what follows is not
// part of the candidate. It returns false if n lies inside a cluster.
func (s *candidate) trimEnd(last, n int) bool {
	l := &s.lines[last]
	raw := rawAt(l.body, n)
	if raw < 0 {
		return false
	}
	l.body = strings.TrimRightFunc(l.body[:raw], isBlank)
	l.trail, l.eol = "", ""
	return true
}

// matchBlanks pairs the blank lines of old with those of the file, in each gap
// between two lines that are not blank.
func (s *candidate) matchBlanks(w *lineEdit) {
	for i := 1; i < len(w.solid); i++ {
		o, end := w.solid[i-1]+1, w.solid[i]
		f, stop := s.of[o-1]+1, s.of[end]
		if end-o != stop-f {
			s.require(Blanks)
		}
		for ; o < end && f < stop; o, f = o+1, f+1 {
			s.of[o] = f
		}
	}
}

// growBlanks adds the blank lines of the file that old begins or ends with, and
// checks those around old.
func (t *text) growBlanks(w *lineEdit, s *candidate) {
	lead, up := w.solid[0], 0
	for up < lead && s.first > up && t.lines[s.first-up-1].blank() {
		up++
	}
	if up < lead {
		s.require(Blanks)
	}
	s.first -= up
	s.lines = append(append([]line{}, t.lines[s.first:s.first+up]...), s.lines...)
	for o := range s.of {
		switch {
		case o >= lead && s.of[o] >= 0:
			s.of[o] += up
		case o < lead && o >= lead-up:
			s.of[o] = o - (lead - up)
		}
	}
	lastSolid := w.solid[len(w.solid)-1]
	down := s.first + len(s.lines)
	for o := lastSolid + 1; o < len(w.old); o++ {
		switch {
		case down < len(t.lines) && t.lines[down].blank():
			s.of[o] = len(s.lines)
			s.lines = append(s.lines, t.lines[down])
			down++
		default:
			s.require(Blanks)
		}
	}
	if !t.blanksAround(w, s, down) {
		s.require(Blanks)
	}
}

// blanksAround reports whether the blank lines that were removed from both old
// and new lie around the candidate.
func (t *text) blanksAround(w *lineEdit, s *candidate, down int) bool {
	for i := range max(w.above-1, 0) { // the first newline may only end the line before
		if at := s.first - 1 - i; at < 0 || !t.lines[at].blank() {
			return false
		}
	}
	for i := range w.below {
		if at := down + i; at >= len(t.lines) || !t.lines[at].blank() {
			return false
		}
	}
	return true
}

// end returns the byte that the candidate ends before.
func (s *candidate) end() int { return s.lines[len(s.lines)-1].end() }

// findLevel finds the level at which the candidate matches. It returns false if
// it matches at none.
func (s *candidate) findLevel(w *lineEdit, t *text) bool {
	var indents []indents
	for o, f := range s.of {
		if f < 0 {
			continue
		}
		a, b := w.old[o], s.lines[f]
		level, ok := difference(a.body, b.body)
		if !ok {
			return false
		}
		s.require(level)
		switch {
		case a.blank():
			if a.indent != b.indent {
				s.require(Trailing)
			}
			continue
		case a.trail != b.trail && (a.eol != "" || o < len(w.old)-1):
			s.require(Trailing)
		}
		indents = append(indents, pairOf(a.indent, b.indent, o == w.solid[0]))
	}
	if s.inside {
		indents = indents[1:]
	}
	level, ok := s.shift.learn(indents, t.unit)
	s.require(level)
	if s.shift.startsInside && s.level == Newlines {
		s.level = Indent // the bytes are equal, but new is indented otherwise
	}
	return ok
}
