package edit

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/tool"
)

// projection carries the difference of old and new over to a spot.
type projection struct {
	t     *text
	w     *lineEdit
	s     *candidate
	of    []int // for each line of new the line of old it is or was, -1 for none
	same  []bool
	shift *shift // from the indentation of new to that of the file
	newAsFile  bool   // new is indented as the file is, not as old
	eol   string // what ends an inserted line
	fix   corrections

	out  []line
	from []int // the line of the spot each of out is, -1 for none
}

// project makes the place of a spot, or says why it cannot.
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
	p.close()
	return p.place()
}

// pair finds out which lines of new are, or were, which of old.
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

// knownGaps looks for blank lines between two lines of which old has another
// number than the file, and new as many as the file. The writer of new knew the
// file there, and means no change; adding what new has more than old would
// double them. It gives new the blank lines of old in such gaps. Where new has
// even more, what it means is not clear.
func (p *projection) dropKnownBlanks() error {
	w := *p.w
	w.new = nil
	var of []int
	var same []bool
	starts, ends := p.edges()
	last := -1 // the line of new before the gap
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
			w.new, of, same = append(w.new, p.w.new[last+1:n]...), append(of, p.of[last+1:n]...), append(same, p.same[last+1:n]...)
		}
		w.new, of, same = append(w.new, l), append(of, p.of[n]), append(same, p.same[n])
		last = n
	}
	w.new, p.of, p.same = append(w.new, p.w.new[last+1:]...), append(of, p.of[last+1:]...), append(same, p.same[last+1:]...)
	p.w = &w
	for n := range p.of { // runs that are equally long now are paired in order
		if !p.same[n] {
			p.of[n] = -1
		}
	}
	changedLines(p.w.old, p.w.new, p.of)
	return nil
}

// edges gives each line of new that is not blank the line of old that it begins
// with and the one that it ends with, or -1. They are the same for a line of new
// that is, or was, one of old. Of a run of lines that are too unlike to pair, the
// first begins where the run of old does and the last ends where that does; if
// both runs are equally long their lines are paired in order.
func (p *projection) edges() (starts, ends []int) {
	starts, ends = slices.Clone(p.of), slices.Clone(p.of)
	var open []int // lines of new without one of old, since the last that has one
	next := 0      // the line of old after that
	last := -1     // the last line of new that has one
	pair := func(end int) {
		var free []int
		for o := next; o < end; o++ {
			if !p.w.old[o].blank() {
				free = append(free, o)
			}
		}
		switch {
		case len(open) == 0 && len(free) > 0 && last >= 0:
			// Whether this line goes or the equal one at the end of the run is the same.
			if end := free[len(free)-1]; p.w.old[end].text() == p.w.old[next-1].text() {
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

// knownGap is the gap of old between two lines of new, if it is such a one.
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
		return lineRange{}, false, p.refuse("how many blank lines belong before line %d of new_string is not clear", to+1)
	}
	return gap, now == len(file) && len(file) != len(old), nil
}

// lineRange is the lines [from, to) of old.
type lineRange struct{ from, to int }

// place makes one splice of what was built, without the bytes that stay.
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
		return place{}, p.refuse("what it means here is not clear")
	}
	head, tail := common(was, with)
	return place{start, end, splice{start + head, end - tail, with[head : len(with)-tail]}}, nil
}

// faithful holds the result against new: its lines have to count as the same.
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

func (p *projection) refuse(format string, args ...any) error {
	return &tool.Refusal{
		Code:    "unclear",
		Message: fmt.Sprintf("old_string was found in %s on line %d only by ignoring %s, and ", p.t.name, p.t.lineAt(p.s.start), p.s.level) + fmt.Sprintf(format, args...),
		Next:    "Read that part of the file and copy old_string exactly.",
	}
}

// frame finds out whose indentation new has: that of old, as usual, or that of
// the file, which the writer knew after all, be it with spaces for tabs.
func (p *projection) chooseShift() error {
	likeOld, likeFile := 0, 0
	var list []indents
	for n, o := range p.of {
		if o < 0 || p.s.of[o] < 0 || p.w.new[n].blank() {
			continue
		}
		i, oi, fi := p.w.new[n].indent, p.w.old[o].indent, p.s.lines[p.s.of[o]].indent
		if n == 0 && i == "" && oi == "" {
			continue // both may begin after it
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
		// Lines that are less deep than the file's, and as deep as those of
		// old, belong to a block that new puts around.
		p.newAsFile = p.shallowest(p.w.new, 1) >= p.shallowest(p.s.lines, 1) || p.shallowest(p.w.new, 1) != p.shallowest(p.w.old, 1)
		return nil
	}
	if likeOld > 0 || len(list) == 0 || !p.s.shift.moved() || p.shallowest(p.w.new, 1) == p.shallowest(p.w.old, 1) {
		return nil
	}
	var other shift
	if _, ok := other.uniform(list, p.t.unit); ok && len(other.models) > 0 {
		if m := other.models[0]; m.tab > 0 && m.delta == 0 && p.shallowest(p.w.new, m.tab) == p.shallowest(p.s.lines, m.tab) {
			p.shift = &other
			return nil
		}
	}
	return p.refuse("how deep the lines of new_string belong is not clear")
}

// shallowest is the least width of the indentation of lines. The first does not
// count if old begins after its indentation, because new then begins there too.
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

// slides refuses to delete one of several lines that old cannot tell apart
// where the file can: "}" after "}" when the indentation is lost.
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
			return p.refuse("which of the lines %q is to go is not clear", p.w.old[a].body)
		}
		a = b
	}
	return nil
}

// apart reports whether two lines of old are the same and those of the file
// are not.
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

// ending is what most of the lines end with.
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

// build walks through new and through the lines of the file beside it.
func (p *projection) build() error {
	at := 0 // the next line of the spot
	o := 0  // the next line of old
	var pending []int
	for n := range p.w.new {
		if p.of[n] < 0 {
			pending = append(pending, n)
			continue
		}
		f := p.s.of[p.of[n]]
		if f < 0 { // a blank line the file does not have
			if !p.w.old[p.of[n]].blank() {
				return p.refuse("line %d of new_string has no line there", n+1)
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
		p.put(l, f)
		at, o = f+1, p.of[n]+1
	}
	return p.gap(at, len(p.s.lines), o, len(p.w.old), pending)
}

func (p *projection) put(l line, f int) {
	p.out = append(p.out, l)
	p.from = append(p.from, f)
}

// gap puts what lies between two lines that stay: the inserted lines in the
// place of those that go, and the lines of the file that old did not know of.
func (p *projection) gap(at, end, o, oEnd int, pending []int) error {
	gone := map[int]bool{}
	first, last := -1, -1
	for ; o < oEnd; o++ {
		f := p.s.of[o]
		if f < 0 {
			continue
		}
		if p.s.level == Near && !p.alike(o, f) {
			return p.refuse("line %d, which is to change, is not as old_string has it", p.s.first+f+1)
		}
		gone[f] = true
		if first < 0 {
			first = f
		}
		last = f
	}
	var before, inside, after []int // lines that old did not know of
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
		return p.refuse("line %d, which old_string leaves out, lies among those to change", p.s.first+inside[0]+1)
	}
	for len(before) > 0 && len(pending) > 0 && p.w.new[pending[0]].blank() {
		p.put(p.s.lines[before[0]], before[0])
		before, pending = before[1:], pending[1:]
	}
	var closing []int
	for len(after) > 0 && len(pending) > 0 && p.w.new[pending[len(pending)-1]].blank() {
		closing = append(closing, pending[len(pending)-1])
		pending = pending[:len(pending)-1]
		after = after[:len(after)-1]
	}
	p.keep(before)
	if err := p.insert(pending, first); err != nil {
		return err
	}
	p.keep(after)
	for range closing {
		p.put(line{eol: p.eol}, -1)
	}
	return nil
}

// between puts inserted lines beside blank ones that old did not know of. On
// which side is clear only if new has blank lines there too.
func (p *projection) between(kept, pending []int) error {
	blank := func(n int) bool { return p.w.new[n].blank() }
	for _, f := range kept {
		if !p.s.lines[f].blank() {
			return p.refuse("whether the new lines come before or after line %d is not clear", p.s.first+f+1)
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
		p.keep(kept[:min(len(kept), head)])
		for range max(0, head-len(kept)) {
			p.put(line{eol: p.eol}, -1)
		}
		if err := p.insert(rest, -1); err != nil {
			return err
		}
		for range tail {
			p.put(line{eol: p.eol}, -1)
		}
		return nil
	case head > 0:
		p.keep(kept)
		return p.insert(rest, -1)
	case tail > 0:
		if err := p.insert(rest, -1); err != nil {
			return err
		}
		p.keep(kept)
		return nil
	}
	return p.refuse("whether the new lines come before or after the blank line %d is not clear", p.s.first+kept[0]+1)
}

func (p *projection) keep(lines []int) {
	for _, f := range lines {
		p.put(p.s.lines[f], f)
	}
}

// insert puts lines that only new has; gone is the first line of the spot they
// take the place of, -1 for none.
func (p *projection) insert(pending []int, gone int) error {
	if (p.shift.unindented || p.lostIndentation() && !p.sameDepth(pending)) && !p.newAsFile {
		return p.insertUnindented(pending, gone)
	}
	for _, n := range pending {
		l, err := p.insertedLine(n)
		if err != nil {
			return err
		}
		p.put(l, -1)
	}
	return nil
}

// lost reports whether old and new have no indentation at all, and the file has
// the same in all of its lines: what old says of that is no help for blocks
// that new begins.
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

// fresh is an inserted line.
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
	l.body = p.fix.apply(l.body)
	l.trail = p.fix.newEnds.intended(l.trail)
	var err error
	l.indent, err = p.indent(n)
	return l, err
}

// indent is that of a line of new in the file.
func (p *projection) indent(n int) (string, error) {
	i := p.w.new[n].indent
	if first := p.w.solid[0]; n == 0 && i == "" && p.w.old[first].indent == "" && (p.s.shift.startsInside || p.newAsFile) {
		return p.s.lines[p.s.of[first]].indent, nil // it begins after its indentation, as old does
	}
	if p.newAsFile {
		return i, nil
	}
	if p.shift.unindented {
		if i == "" {
			return "", p.refuse("how deep line %d of new_string belongs is not clear", n+1)
		}
		return i, nil
	}
	file, sure := p.shift.of(i)
	if !sure {
		return "", p.refuse("how deep line %d of new_string belongs is not clear", n+1)
	}
	if len(p.shift.models) == 0 && p.fix.tab > 0 && p.t.unit == "\t" && len(file)%p.fix.tab == 0 && strings.Trim(file, " ") == "" {
		file = strings.Repeat("\t", len(file)/p.fix.tab) // spaces were written for tabs here too
	}
	return file, nil
}

// line is a line of new that is, or was, line f of the spot.
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
		return out, p.refuse("line %d, which is to change, is not as old_string has it", p.s.first+f+1)
	}
	switch {
	case p.same[n] && (was.body == is.body || was.body != there.body):
	case was.body == there.body:
		out.body = p.fix.apply(is.body)
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
	case p.shift.unindented && !p.newAsFile && !p.same[n] && (opens(is.body) != opens(was.body) || closes(is.body) != closes(was.body)):
		err = p.refuse("how deep line %d of new_string belongs is not clear", n+1)
	case is.indent == was.indent && !p.newAsFile && p.shift == &p.s.shift:
	case p.shift.unindented && !p.newAsFile:
		err = p.refuse("how deep line %d of new_string belongs is not clear", n+1)
	default:
		out.indent, err = p.indent(n)
	}
	return out, err
}

// alike reports whether a line of old counts as the one of the file.
func (p *projection) alike(o, f int) bool {
	if p.s.level != Near {
		return true
	}
	_, ok := difference(p.w.old[o].body, p.s.lines[f].body)
	return ok
}

// close ends the lines as the spot ended: where the file had no last newline
// there is none, and no line but the last goes without.
func (p *projection) close() {
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
