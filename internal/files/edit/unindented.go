package edit

import "strings"

// insertUnindented writes lines of new if old and new lost all indentation.
// Their depth follows from brackets. It refuses unless the brackets lead from
// the line before to the line after, and to the replaced line, because
// everything else is a guess.
func (p *projection) insertUnindented(pending []int, gone int) error {
	if len(pending) == 0 {
		return nil
	}
	before, ok := p.lineBefore()
	after, more := p.lineAfter()
	if !ok && !more {
		return p.refusef("it is not clear how deep to indent line %d of new_string", pending[0]+1)
	}
	deep := depth{unit: p.t.unit}
	if ok {
		deep.line, deep.body = before.indent, before.body
	} else {
		deep.line, deep.body = after.indent, ""
	}
	if now := deep; gone < 0 && ok && more && !now.leadsTo(after) {
		// The brackets do not explain the file as it is, so they say nothing of new.
		return p.refusef("it is not clear how deep to indent line %d of new_string", pending[0]+1)
	}
	level := ok && more && before.indent == after.indent && !opens(before.body) && p.sameDepth(pending)
	for _, n := range pending {
		l := p.w.new[n]
		if l.eol != "" {
			l.eol = p.eol
		}
		l.indent = ""
		if !l.blank() {
			l.body = p.fix.correct(l.body)
			l.trail = p.fix.newEnds.intended(l.trail)
			if !level && !deep.nextDepth(l.body) {
				return p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
			}
			l.indent = deep.line
			if gone >= 0 && l.indent != p.s.lines[gone].indent {
				return p.refusef("it is not clear how deep to indent line %d of new_string", n+1)
			}
			gone = -1
		}
		p.addLine(l, -1)
	}
	if !level && more && !deep.leadsTo(after) {
		return p.refusef("it is not clear how deep to indent line %d of new_string", pending[len(pending)-1]+1)
	}
	return nil
}

// sameDepth reports whether no line opens or closes a block.
func (p *projection) sameDepth(lines []int) bool {
	for _, n := range lines {
		if b := p.w.new[n].body; b != "" && (opens(b) || closes(b)) {
			return false
		}
	}
	return true
}

// lineBefore returns the last line that is not blank before what is written
// next.
func (p *projection) lineBefore() (line, bool) {
	for i := len(p.out) - 1; i >= 0; i-- {
		if !p.out[i].blank() {
			return p.out[i], true
		}
	}
	for i := p.s.first - 1; i >= 0; i-- {
		if !p.t.lines[i].blank() {
			return p.t.lines[i], true
		}
	}
	return line{}, false
}

// lineAfter returns the next line of the file that stays.
func (p *projection) lineAfter() (line, bool) {
	stays := map[int]bool{}
	done := -1
	for _, f := range p.from {
		done = max(done, f)
	}
	for n, o := range p.of {
		if o >= 0 && p.s.of[o] > done && !p.w.new[n].blank() {
			stays[p.s.of[o]] = true
		}
	}
	for f := done + 1; f < len(p.s.lines); f++ {
		if stays[f] {
			return p.s.lines[f], true
		}
	}
	for i := p.s.first + len(p.s.lines); i < len(p.t.lines); i++ {
		if !p.t.lines[i].blank() {
			return p.t.lines[i], true
		}
	}
	return line{}, false
}

// depth follows indentation from line to line.
type depth struct {
	unit string
	line string // indentation of the last line
	body string // its text
}

// nextDepth goes on to a line. It returns false if the depth of the line is not
// known.
func (d *depth) nextDepth(body string) bool {
	in := d.line
	if opens(d.body) {
		if d.unit == "" {
			return false
		}
		in += d.unit
	}
	if closes(body) {
		cut, ok := strings.CutSuffix(in, d.unit)
		if !ok || d.unit == "" {
			return false
		}
		in = cut
	}
	d.line, d.body = in, body
	return true
}

// leadsTo goes on to a line and reports whether the line has the expected
// indentation.
func (d *depth) leadsTo(l line) bool { return d.nextDepth(l.body) && d.line == l.indent }

// opens reports whether the lines after this one are one step deeper.
func opens(body string) bool {
	for _, mark := range []string{"//", "#"} { // What a comment ends with does not count.
		if strings.HasPrefix(body, mark) {
			return false
		}
		body, _, _ = strings.Cut(body, " "+mark)
	}
	body = strings.TrimRight(body, " \t")
	return body != "" && strings.ContainsRune("{([:", rune(body[len(body)-1]))
}

// closes reports whether this line is one step less deep than those before it.
func closes(body string) bool {
	if strings.ContainsRune("})]", rune(body[0])) {
		return true
	}
	for _, word := range []string{"case ", "default:", "else:", "elif ", "except", "finally:"} {
		if strings.HasPrefix(body, word) && strings.HasSuffix(body, ":") {
			return true
		}
	}
	return false
}
