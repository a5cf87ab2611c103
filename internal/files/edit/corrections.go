package edit

import (
	"strings"
	"unicode/utf8"
)

// corrections is what the writer of old got wrong about the characters of the
// file, as the lines that were found show. They are applied to text that only
// new has.
type corrections struct {
	chars    map[string]string // from what old has to what the file has
	straight bool              // old has typographic characters where the file has plain ones
	oldEnds  lineEnds          // trailing blanks of old
	newEnds  lineEnds          // trailing blanks of new
	tab      int               // number of spaces written for a tab inside lines; 0 if none
	text     string            // the file; a character that it uses is not corrected
}

// corrections compares the lines of old with their lines in the file.
func (p *projection) corrections() corrections {
	c := corrections{text: string(p.t.content)}
	c.oldEnds, c.newEnds = p.lineEnds()
	for o, f := range p.s.of {
		if f < 0 || p.w.old[o].blank() {
			continue
		}
		a, b := p.w.old[o], p.s.lines[f]
		if a.body == b.body && isPlain(a.body) {
			continue
		}
		pairs, _ := align(clusters(a.body), clusters(b.body))
		for _, q := range pairs {
			c.learn(q)
		}
	}
	return c
}

// lineEnds is the blanks that a writer put at the end of every line, beyond
// those of the file. old and new have one each, because a model often drops such
// blanks in new.
type lineEnds struct {
	surplus string // what most lines end with beyond the file
	mixed   bool   // no surplus is common to most lines, so none is intended
	counts  map[string]int
}

// learn compares a line that was written with its line in the file. A line with
// fewer blanks than the file does not count, because writers omit trailing
// blanks that they do not see.
func (e *lineEnds) learn(written, there string) {
	surplus, ok := strings.CutPrefix(written, there)
	if !ok {
		return
	}
	if e.counts == nil {
		e.counts = map[string]int{}
	}
	e.counts[surplus]++
}

// decide sets the surplus after all lines were compared.
func (e *lineEnds) decide() {
	all := 0
	for _, n := range e.counts {
		all += n
	}
	e.mixed = all > 0
	for surplus, n := range e.counts {
		if 2*n > all {
			e.surplus, e.mixed = surplus, false
		}
	}
}

// intended returns the trailing blanks that the writer meant.
func (e *lineEnds) intended(trail string) string {
	if e.mixed {
		return ""
	}
	return strings.TrimSuffix(trail, e.surplus)
}

// lineEnds compares all lines of old, and the lines of new that stay, with the
// file.
func (p *projection) lineEnds() (old, new lineEnds) {
	for o, f := range p.s.of {
		if a := p.w.old[o]; f >= 0 && !a.blank() && (a.eol != "" || o < len(p.w.old)-1) {
			old.learn(a.trail, p.s.lines[f].trail)
		}
	}
	for n, o := range p.of {
		a := p.w.new[n]
		if p.same[n] && !a.blank() && p.s.of[o] >= 0 && (a.eol != "" || n < len(p.w.new)-1) {
			new.learn(a.trail, p.s.lines[p.s.of[o]].trail)
		}
	}
	old.decide()
	new.decide()
	if len(new.counts) == 0 { // No line stays, so the lines of new have to show it among themselves.
		new = lineEnds{mixed: old.mixed}
		if old.surplus != "" {
			new.surplus = commonTrail(p.w.new)
		}
	}
	return old, new
}

// commonTrail returns the blanks that all lines end with which are not blank. A
// last line without a line ending does not count.
func commonTrail(lines []line) string {
	shared, found := "", false
	for _, l := range lines {
		if l.blank() || l.eol == "" {
			continue
		}
		if !found {
			shared, found = l.trail, true
		}
		for !strings.HasSuffix(l.trail, shared) {
			_, n := utf8.DecodeRuneInString(shared)
			shared = shared[n:]
		}
	}
	return shared
}

// learn compares one part of a line of old with the file. It records typographic
// characters written for plain ones, and spaces written for a tab if they always
// stand for that.
func (c *corrections) learn(q pair) {
	switch {
	case allBlank(q.a) && len(q.a) > 1 && ascii(q.a):
		if was, known := c.chars[q.a]; known && was != q.b {
			q.b = q.a
		}
		if q.b == "\t" && !strings.Contains(q.a, "\t") {
			c.tab = len(q.a)
		}
	case q.a == q.b || ascii(q.a) || !ascii(q.b):
		return
	default:
		c.straight = true
	}
	if c.chars == nil {
		c.chars = map[string]string{}
	}
	c.chars[q.a] = q.b
}

// correct corrects a text that only new has.
func (c *corrections) correct(s string) string {
	if c.chars == nil {
		return s
	}
	var b strings.Builder
	for _, q := range clusters(s) {
		switch to, known := c.chars[q.raw]; {
		case known:
			b.WriteString(to)
		case !c.straight:
			b.WriteString(q.raw)
		case !ascii(q.raw) && ascii(q.key) && q.key != "" && !strings.Contains(c.text, q.raw):
			b.WriteString(q.key)
		default:
			b.WriteString(q.raw)
		}
	}
	return b.String()
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// reworded returns the line for is, which replaces was, where the file has the
// line there. was and there are equal but for look-alike characters and blanks.
// The parts of was that stay in is keep the bytes of the file.
func (p *projection) reworded(was, is, there string) string {
	a, b := clusters(was), clusters(is)
	pairs, ok := align(a, clusters(there))
	if head, tail := common(was, is); !ok ||
		2*(head+tail) < min(len(was), len(is)) { // too different to compare in parts
		return p.fix.correct(is)
	}
	// The clusters of was that pair with one cluster of the file each.
	file := make([]string, len(a))
	known := make([]bool, len(a))
	i := 0
	for _, q := range pairs {
		n := 0
		for raw := 0; raw < len(q.a); n++ {
			raw += len(a[i+n].raw)
		}
		if n == 1 {
			file[i], known[i] = q.b, true
		}
		if n > 1 && q.a == q.b {
			for k := i; k < i+n; k++ {
				file[k], known[k] = a[k].raw, true
			}
		}
		i += n
	}
	var out, new strings.Builder
	flush := func() {
		out.WriteString(p.fix.correct(new.String()))
		new.Reset()
	}
	of := pairSequences(len(a), len(b), func(i, j int) int {
		if a[i].key != b[j].key {
			return 0
		}
		if i > 0 && j > 0 && a[i-1].key == b[j-1].key {
			return 3
		}
		return 2
	})
	for j, i := range of {
		switch {
		case i >= 0 && known[i] && (a[i].raw == b[j].raw || a[i].raw != file[i] && !allBlank(b[j].raw)):
			flush()
			out.WriteString(file[i])
		default:
			new.WriteString(b[j].raw)
		}
	}
	flush()
	return out.String()
}
