package edit

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/tool"
)

// projection carries the difference of old and new over to a candidate.
type projection struct {
	t         *text
	w         *lineEdit
	s         *candidate
	of        []int // for each line of new the line of old that it is or was; -1 for none
	same      []bool
	shift     *shift // from the indentation of new to that of the file
	newAsFile bool   // new is indented as the file, not as old
	eol       string // line ending of inserted lines
	fix       corrections

	out  []line
	from []int // for each line of out the line of the candidate; -1 for none
}

// project returns the place and the change that an edit makes at a candidate. It
// refuses if the change is not clear there.
func (t *text) project(w *lineEdit, s *candidate) (place, error) {
	p := &projection{t: t, w: w, s: s}
	p.pair()
	if err := p.dropKnownBlanks(); err != nil {
		return place{}, err
	}
	s.shift.steps(append(append([]line{}, w.old...), w.new...), t.unit)
	if err := p.checkEqualLines(); err != nil {
		return place{}, err
	}
	if err := p.chooseShift(); err != nil {
		return place{}, err
	}
	p.eol = ending(s.lines, t)
	p.fix = p.corrections()
	if err := p.build(); err != nil {
		return place{}, err
	}
	p.closeProjection()
	return p.place()
}

// pair finds which lines of new are, or were, which lines of old.
func (p *projection) pair() {
	file := make([]counterpart, len(p.w.old))
	for o, f := range p.s.of {
		file[o].blanks = -1
		if f >= 0 {
			file[o] = counterpart{p.s.lines[f].body, blanksAfter(p.s.lines, f)}
		}
	}
	p.of = sameLines(p.w.old, p.w.new, file)
	p.same = make([]bool, len(p.w.new))
	for n, o := range p.of {
		p.same[n] = o >= 0
	}
	changedLines(p.w.old, p.w.new, p.of)
}

// dropKnownBlanks looks for gaps between two lines in which old has another
// number of blank lines than the file, and new has as many as the file. There
// the writer of new knew the file and means no change, so the blank lines that
// new has more than old must not be inserted again. dropKnownBlanks gives new
// the blank lines of old in such gaps. It refuses if new has even more blank
// lines than the file, because it is not clear how many are meant.
func (p *projection) dropKnownBlanks() error {
	w := *p.w
	w.new = nil
	var of []int
	var same []bool
	starts, ends := p.edges()
	last := -1 // line of new before the gap
	for n, l := range p.w.new {
		if l.blank() {
			continue
		}
		gap, ok, err := p.matchGap(ends, starts, last, n)
		if err != nil {
			return err
		}
		if ok {
			for o := gap.from; o < gap.to; o++ {
				w.new, of, same = append(w.new, p.w.old[o]), append(of, o), append(same, true)
			}
		} else {
			w.new = append(w.new, p.w.new[last+1:n]...)
			of = append(of, p.of[last+1:n]...)
			same = append(same, p.same[last+1:n]...)
		}
		w.new, of, same = append(w.new, l), append(of, p.of[n]), append(same, p.same[n])
		last = n
	}
	w.new, p.of, p.same = append(
		w.new,
		p.w.new[last+1:]...), append(
		of,
		p.of[last+1:]...), append(
		same,
		p.same[last+1:]...)
	p.w = &w
	for n := range p.of { // Runs may have the same shape now, and then pair in order.
		if !p.same[n] {
			p.of[n] = -1
		}
	}
	changedLines(p.w.old, p.w.new, p.of)
	return nil
}

// edges returns for each line of new that is not blank the line of old that it
// begins with and the one that it ends with, or -1. Both are the same for a line
// that is, or was, a line of old. Lines too unlike to pair form runs: the first
// begins where the run of old begins, and the last ends where that ends. Runs of
// equal length pair in order.
func (p *projection) edges() (starts, ends []int) {
	starts, ends = slices.Clone(p.of), slices.Clone(p.of)
	var open []int // lines of new without a line of old, since the last that has one
	next := 0      // line of old after that
	last := -1     // last line of new that has a line of old
	pair := func(end int) {
		var free []int
		for o := next; o < end; o++ {
			if !p.w.old[o].blank() {
				free = append(free, o)
			}
		}
		switch {
		case len(open) == 0 && len(free) > 0 && last >= 0:
			// Deleting the equal line at the end of the run has the same result.
			if end := free[len(free)-1]; p.w.old[end].lineText() == p.w.old[next-1].lineText() {
				ends[last] = end
			}
		case len(free) == len(open):
			for i, n := range open {
				starts[n], ends[n] = free[i], free[i]
			}
		case len(free) > 0 && len(open) > 0:
			starts[open[0]], ends[open[len(open)-1]] = free[0], free[len(free)-1]
		}
		open = nil
	}
	for n, l := range p.w.new {
		switch {
		case l.blank():
		case p.of[n] < 0:
			open = append(open, n)
		default:
			pair(p.of[n])
			next, last = p.of[n]+1, n
		}
	}
	pair(len(p.w.old))
	return starts, ends
}

// matchGap returns the gap of old between two lines of new. It returns false if
// new does not have the blank lines of the file there.
func (p *projection) matchGap(ends, starts []int, from, to int) (gap lineRange, ok bool, err error) {
	if from < 0 {
		return lineRange{}, false, nil
	}
	a, b := ends[from], starts[to]
	if a < 0 || b <= a || p.s.of[a] < 0 || p.s.of[b] < 0 {
		return lineRange{}, false, nil
	}
	gap = lineRange{a + 1, b}
	old := p.w.old[a+1 : b]
	file := p.s.lines[p.s.of[a]+1 : max(p.s.of[b], p.s.of[a]+1)]
	for _, l := range append(append([]line{}, old...), file...) {
		if !l.blank() {
			return lineRange{}, false, nil
		}
	}
	now := to - from - 1
	if now > len(file) && len(file) > len(old) && len(old) > 0 {
		return lineRange{}, false, p.refusef(
			"it is not clear how many blank lines belong before line %d of new_string",
			to+1,
		)
	}
	return gap, now == len(file) && len(file) != len(old), nil
}

// lineRange is the lines [from, to) of old.
type lineRange struct{ from, to int }

// place returns the change that was built, without the bytes that stay.
func (p *projection) place() (place, error) {
	var b strings.Builder
	for _, l := range p.out {
		b.WriteString(l.indent)
		b.WriteString(l.body)
		b.WriteString(l.trail)
		b.WriteString(l.eol)
	}
	start, end := p.s.start, p.s.end()
	was, with := string(p.t.content[start:end]), b.String()
	if p.s.level != Near && !p.faithful(with) {
		return place{}, p.refusef("it is not clear which change is meant")
	}
	head, tail := common(was, with)
	return place{start, end, splice{start + head, end - tail, with[head : len(with)-tail]}}, nil
}

// faithful reports whether the result has the lines of new, compared by their
// keys. It turns a mistake in the projection into a refusal.
func (p *projection) faithful(with string) bool {
	var a, b []string
	for _, l := range split(with) {
		if !l.blank() {
			a = append(a, fold(l.body))
		}
	}
	for _, l := range p.w.new {
		if !l.blank() {
			b = append(b, fold(l.body))
		}
	}
	return strings.Join(a, "\n") == strings.Join(b, "\n")
}

// refusef returns the refusal of an edit that is not clear at the candidate.
func (p *projection) refusef(format string, args ...any) error {
	return &tool.Refusal{
		Code: tool.CodeUnclear,
		Message: fmt.Sprintf(
			"old_string was found in %s on line %d only by ignoring %s, and ",
			p.t.name,
			p.t.lineAt(p.s.start),
			p.s.level,
		) + fmt.Sprintf(
			format,
			args...),
		Next: "Read that part of the file and copy old_string exactly.",
	}
}

// chooseShift finds whose indentation new has. Usually it is that of old. It is
// that of the file, possibly with spaces for tabs, if the writer of new knew the
// file.
func (p *projection) chooseShift() error {
	likeOld, likeFile := 0, 0
	var list []indents
	for n, o := range p.of {
		if o < 0 || p.s.of[o] < 0 || p.w.new[n].blank() {
			continue
		}
		i, oi, fi := p.w.new[n].indent, p.w.old[o].indent, p.s.lines[p.s.of[o]].indent
		if n == 0 && i == "" && oi == "" {
			continue // Both may begin after the indentation.
		}
		list = append(list, indents{i, fi, false})
		if i == oi {
			likeOld++
		}
		if i == fi {
			likeFile++
		}
	}
	p.shift = &p.s.shift
	if likeFile > likeOld {
		// Lines less deep than those of the file, and as deep as those of old,
		// belong to a block that new puts around the lines.
		p.newAsFile = p.shallowest(p.w.new, 1) >= p.shallowest(p.s.lines, 1) ||
			p.shallowest(p.w.new, 1) != p.shallowest(p.w.old, 1)
		return nil
	}
	if likeOld > 0 || len(list) == 0 || !p.s.shift.moved() || p.shallowest(p.w.new, 1) == p.shallowest(p.w.old, 1) {
		return nil
	}
	var other shift
	if _, ok := other.uniform(list, p.t.unit); ok && len(other.models) > 0 {
		if m := other.models[0]; m.tab > 0 && m.delta == 0 &&
			p.shallowest(p.w.new, m.tab) == p.shallowest(p.s.lines, m.tab) {
			p.shift = &other
			return nil
		}
	}
	return p.refusef("it is not clear how deep to indent the lines of new_string")
}

// shallowest returns the least width of the indentation of lines. The first line
// does not count if old begins after its indentation, because new then begins
// there too.
func (p *projection) shallowest(lines []line, tab int) int {
	least := -1
	for i, l := range lines {
		if l.blank() || i == 0 && (p.s.inside || p.s.shift.startsInside) && len(lines) > 1 {
			continue
		}
		if w := width(l.indent, tab); least < 0 || w < least {
			least = w
		}
	}
	return least
}

// checkEqualLines refuses to delete one of several lines that are equal in old
// and differ in the file, such as one of two closing braces when old lost its
// indentation.
func (p *projection) checkEqualLines() error {
	stays := make([]bool, len(p.w.old))
	for _, o := range p.of {
		if o >= 0 {
			stays[o] = true
		}
	}
	for a := 0; a < len(stays); a++ {
		b := a
		for b < len(stays) && !stays[b] {
			b++
		}
		if b == a {
			continue
		}
		if p.differInFile(a, b) || p.differInFile(b-1, a-1) {
			return p.refusef("it is not clear which of the lines %q to delete", p.w.old[a].body)
		}
		a = b
	}
	return nil
}

// differInFile reports whether two lines of old are equal and those of the file
// differ.
func (p *projection) differInFile(a, b int) bool {
	if a < 0 || b < 0 || a >= len(p.w.old) || b >= len(p.w.old) || p.w.old[a].blank() {
		return false
	}
	o, q, f, g := p.w.old[a], p.w.old[b], p.s.of[a], p.s.of[b]
	if o.indent != q.indent || o.body != q.body || f < 0 || g < 0 {
		return false
	}
	return p.s.lines[f].indent != p.s.lines[g].indent || p.s.lines[f].body != p.s.lines[g].body
}

// ending returns the line ending of most of the lines.
func ending(lines []line, t *text) string {
	n := map[string]int{}
	for _, l := range lines {
		n[l.eol]++
	}
	if n["\r\n"] == 0 && n["\n"] == 0 {
		for _, l := range t.lines {
			n[l.eol]++
		}
	}
	if n["\r\n"] > n["\n"] {
		return "\r\n"
	}
	return "\n"
}

// build goes through new, and through the lines of the file beside it.
func (p *projection) build() error {
	at := 0 // next line of the candidate
	o := 0  // next line of old
	var pending []int
	for n := range p.w.new {
		if p.of[n] < 0 {
			pending = append(pending, n)
			continue
		}
		f := p.s.of[p.of[n]]
		if f < 0 { // The file does not have this line.
			if !p.w.old[p.of[n]].blank() {
				return p.refusef("line %d of new_string has no counterpart there", n+1)
			}
			if p.w.new[n].blank() {
				continue
			}
			pending = append(pending, n)
			continue
		}
		if err := p.gap(at, f, o, p.of[n], pending); err != nil {
			return err
		}
		pending = nil
		l, err := p.keptLine(n, f)
		if err != nil {
			return err
		}
		p.addLine(l, f)
		at, o = f+1, p.of[n]+1
	}
	return p.gap(at, len(p.s.lines), o, len(p.w.old), pending)
}

func (p *projection) addLine(l line, f int) {
	p.out = append(p.out, l)
	p.from = append(p.from, f)
}

// gap writes what lies between two lines that stay: the inserted lines in the
// place of the deleted ones, and the lines of the file that old does not have.
func (p *projection) gap(at, end, o, oEnd int, pending []int) error {
	gone := map[int]bool{}
	first, last := -1, -1
	for ; o < oEnd; o++ {
		f := p.s.of[o]
		if f < 0 {
			continue
		}
		if p.s.level == Near && !p.alike(o, f) {
			return p.refusef("line %d, which the edit changes, differs from old_string", p.s.first+f+1)
		}
		gone[f] = true
		if first < 0 {
			first = f
		}
		last = f
	}
	var before, inside, after []int // lines that old does not have
	for f := at; f < end; f++ {
		switch {
		case gone[f]:
		case first < 0 || f < first:
			before = append(before, f)
		case f > last:
			after = append(after, f)
		default:
			inside = append(inside, f)
		}
	}
	if len(gone) == 0 && len(before) > 0 && len(pending) > 0 {
		return p.between(before, pending)
	}
	if len(inside) > 0 && (len(pending) > 1 || p.s.level == Near) {
		return p.refusef(
			"line %d, which old_string does not have, lies among the lines to change",
			p.s.first+inside[0]+1,
		)
	}
	for len(before) > 0 && len(pending) > 0 && p.w.new[pending[0]].blank() {
		p.addLine(p.s.lines[before[0]], before[0])
		before, pending = before[1:], pending[1:]
	}
	var closing []int
	for len(after) > 0 && len(pending) > 0 && p.w.new[pending[len(pending)-1]].blank() {
		closing = append(closing, pending[len(pending)-1])
		pending = pending[:len(pending)-1]
		after = after[:len(after)-1]
	}
	p.keepLines(before)
	if err := p.insert(pending, first); err != nil {
		return err
	}
	p.keepLines(after)
	for range closing {
		p.addLine(line{eol: p.eol}, -1)
	}
	return nil
}

// between writes inserted lines beside blank lines that old does not have. The
// side is clear only if new has blank lines there too.
func (p *projection) between(kept, pending []int) error {
	blank := func(n int) bool { return p.w.new[n].blank() }
	for _, f := range kept {
		if !p.s.lines[f].blank() {
			return p.refusef("it is not clear whether the new lines come before or after line %d", p.s.first+f+1)
		}
	}
	head, tail := 0, 0
	for head < len(pending) && blank(pending[head]) {
		head++
	}
	for tail < len(pending)-head && blank(pending[len(pending)-1-tail]) {
		tail++
	}
	rest := pending[head : len(pending)-tail]
	switch {
	case head > 0 && tail > 0 || len(rest) == 0 && head > 0:
		p.keepLines(kept[:min(len(kept), head)])
		for range max(0, head-len(kept)) {
			p.addLine(line{eol: p.eol}, -1)
		}
		if err := p.insert(rest, -1); err != nil {
			return err
		}
		for range tail {
			p.addLine(line{eol: p.eol}, -1)
		}
		return nil
	case head > 0:
		p.keepLines(kept)
		return p.insert(rest, -1)
	case tail > 0:
		if err := p.insert(rest, -1); err != nil {
			return err
		}
		p.keepLines(kept)
		return nil
	}
	return p.refusef("it is not clear whether the new lines come before or after the blank line %d",
		p.s.first+kept[0]+1)
}

// keepLines writes lines of the file as they are.
func (p *projection) keepLines(lines []int) {
	for _, f := range lines {
		p.addLine(p.s.lines[f], f)
	}
}

// insert writes lines that only new has. gone is the first line of the candidate
// that they replace, -1 if there is none.
func (p *projection) insert(pending []int, gone int) error {
	if (p.shift.unindented || p.lostIndentation() && !p.sameDepth(pending)) && !p.newAsFile {
		return p.insertUnindented(pending, gone)
	}
	for _, n := range pending {
		l, err := p.insertedLine(n)
		if err != nil {
			return err
		}
		p.addLine(l, -1)
	}
	return nil
}

// lostIndentation reports whether old and new have no indentation and all lines
// of the file have the same. Then old does not show how deep the blocks of new
// are.
func (p *projection) lostIndentation() bool {
	if len(p.shift.pairs) != 1 || p.shift.pairs[0].old != "" {
		return false
	}
	for _, l := range p.w.new {
		if l.indent != "" && !l.blank() {
			return false
		}
	}
	return true
}

// insertedLine returns the line for a line that only new has.
func (p *projection) insertedLine(n int) (line, error) {
	l := p.w.new[n]
	if l.eol != "" {
		l.eol = p.eol
	}
	if l.blank() {
		if p.s.level >= Trailing && l.eol != "" {
			l.indent = ""
		}
		return l, nil
	}
	l.body = p.fix.correct(l.body)
	l.trail = p.fix.newEnds.intended(l.trail)
	var err error
	l.indent, err = p.indent(n)
	return l, err
}

// indent returns the indentation of a line of new in the file.
func (p *projection) indent(n int) (string, error) {
	i := p.w.new[n].indent
	if first := p.w.solid[0]; n == 0 && i == "" && p.w.old[first].indent == "" &&
		(p.s.shift.startsInside || p.newAsFile) {
		return p.s.lines[p.s.of[first]].indent, nil // as old, it begins after its indentation
	}
	if p.newAsFile {
		return i, nil
	}
	if p.shift.unindented {
		if i == "" {
			return "", p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
		}
		return i, nil
	}
	file, sure := p.shift.of(i)
	if !sure {
		return "", p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
	}
	if len(p.shift.models) == 0 && p.fix.tab > 0 && p.t.unit == "\t" && len(file)%p.fix.tab == 0 &&
		strings.Trim(file, " ") == "" {
		file = strings.Repeat("\t", len(file)/p.fix.tab) // old has spaces for the tabs of the file
	}
	return file, nil
}

// keptLine returns the line for a line of new that is, or was, line f of the
// candidate.
func (p *projection) keptLine(n, f int) (line, error) {
	o := p.of[n]
	was, is, there := p.w.old[o], p.w.new[n], p.s.lines[f]
	out := there
	if is.blank() || was.blank() {
		if is.eol == "" {
			out.eol = ""
		}
		return out, nil
	}
	if !p.alike(o, f) && (!p.same[n] || is.indent != was.indent) {
		return out, p.refusef("line %d, which the edit changes, differs from old_string", p.s.first+f+1)
	}
	switch {
	case p.same[n] && (was.body == is.body || was.body != there.body):
	case was.body == there.body:
		out.body = p.fix.correct(is.body)
	default:
		out.body = p.reworded(was.body, is.body, there.body)
	}
	wasTrail, isTrail := p.fix.oldEnds.intended(was.trail), p.fix.newEnds.intended(is.trail)
	if isTrail != wasTrail && (!p.same[n] || wasTrail == there.trail) {
		out.trail = isTrail
	}
	if is.eol == "" {
		out.eol = ""
	} else if out.eol == "" && was.eol == "" {
		out.eol = p.eol
	}
	var err error
	switch {
	case p.shift.unindented && !p.newAsFile && !p.same[n] &&
		(opens(is.body) != opens(was.body) || closes(is.body) != closes(was.body)):
		err = p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
	case is.indent == was.indent && !p.newAsFile && p.shift == &p.s.shift:
	case p.shift.unindented && !p.newAsFile:
		err = p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
	default:
		out.indent, err = p.indent(n)
	}
	return out, err
}

// alike reports whether a line of old is equal to its line in the file, at the
// level of the candidate.
func (p *projection) alike(o, f int) bool {
	if p.s.level != Near {
		return true
	}
	_, ok := difference(p.w.old[o].body, p.s.lines[f].body)
	return ok
}

// closeProjection sets the line endings that depend on the place: the last line has none
// if the file ends without, and all others have one.
func (p *projection) closeProjection() {
	if len(p.out) == 0 {
		return
	}
	last := len(p.out) - 1
	for i := range p.out[:last] {
		if p.out[i].eol == "" {
			p.out[i].eol = p.eol
		}
	}
	if there := p.s.lines[len(p.s.lines)-1]; p.s.ended && there.eol == "" {
		p.out[last].eol = ""
	}
}
