package edit

import "strings"

// shift is how the indentation of an old text became that of the file: not at
// all, by one change for all lines, or lost altogether.
type shift struct {
	pairs        []indents // one for each indentation of old; empty if none differs
	models       []model   // models that explain the pairs, the likeliest first
	step         int       // step of old and new, in characters
	tabbed       bool      // old or new indents with tabs
	style        string    // what the file indents with at these lines: "\t", " ", or "" if it does not
	unindented   bool      // old has no indentation, and the file has several
	startsInside bool      // old begins after the indentation of its first line
}

// indents is the indentation of one line in old and in the file.
type indents struct {
	old, file string
	first     bool
}

func pairOf(old, file string, first bool) indents { return indents{old, file, first} }

// model computes the width of an indentation in the file from that in old:
// either a tab counts as a number of spaces in both, or a step of old stands for
// a step of the file.
type model struct {
	tab       int // width of a tab; 0 if steps stand for steps
	delta     int // width in the file minus width in old, in spaces
	from, to  int // one step of old and of the file, in characters
	base, top int // the same indentation in both, in characters
}

// learn compares the indentation of the lines that are not blank. It returns the
// level Exact if none differs, and false if no one change explains all of them.
func (s *shift) learn(list []indents, unit string) (Level, bool) {
	*s = shift{}
	if level, ok := s.uniform(list, unit); ok {
		return level, true
	}
	lost := true
	for _, p := range list {
		lost = lost && p.old == ""
	}
	if len(list) > 1 && list[0].first && list[0].old == "" {
		if level, ok := s.uniform(list[1:], unit); ok && (level == Exact || !lost) {
			s.startsInside = true
			return level, true
		}
	}
	s.pairs, s.models = nil, nil
	s.unindented = lost
	return Indent, lost
}

// moved reports whether the lines of old are not as deep as those of the file.
func (s *shift) moved() bool {
	return s.unindented || len(s.models) > 0 && (s.models[0].tab == 0 || s.models[0].delta != 0)
}

// uniform is learn without the exceptions for a first line that begins after its
// indentation and for lost indentation.
func (s *shift) uniform(list []indents, unit string) (Level, bool) {
	level := Exact
	s.pairs, s.models, s.style = nil, nil, ""
	for _, p := range list {
		switch {
		case p.old == p.file:
		case plainBlanks(p.old) == plainBlanks(p.file):
			level = max(level, Lookalikes)
		default:
			level = Indent
		}
		if !s.addIndent(p) {
			return 0, false
		}
	}
	if level < Indent {
		s.pairs = nil
		return level, true
	}
	s.style = styleOf(s.pairs, unit)
	s.models = modelsOf(s.pairs, unit)
	return level, len(s.models) > 0
}

// addIndent keeps one pair for each indentation. It returns false if one indentation
// stands for two.
func (s *shift) addIndent(p indents) bool {
	for _, q := range s.pairs {
		if q.old == p.old || q.file == p.file {
			return q.old == p.old && q.file == p.file
		}
	}
	s.pairs = append(s.pairs, p)
	return true
}

// steps finds the step and the tabs in the indentation of old and new. unit is
// the step of the file.
func (s *shift) steps(lines []line, unit string) {
	least := -1
	for _, l := range lines {
		if l.blank() {
			continue
		}
		s.tabbed = s.tabbed || strings.Contains(l.indent, "\t")
		n := len(l.indent)
		if least < 0 {
			least = n
		}
		s.step = gcd(s.step, abs(n-least))
	}
	if s.tabbed && unit != "\t" {
		s.step = len(unit)
	}
}

// styleOf returns the character that the file indents with at these lines, else
// that of its step.
func styleOf(pairs []indents, unit string) string {
	style := ""
	for _, p := range pairs {
		switch {
		case strings.Contains(p.file, "\t"):
			return "\t"
		case p.file != "":
			style = " "
		}
	}
	if style == "" && unit != "" {
		style = unit[:1]
	}
	return style
}

// tabs are the widths that a tab may have, the likeliest first.
var tabs = [...]int{4, 2, 8, 3, 1}

// modelsOf returns the models that explain all pairs, those without a shift
// first.
func modelsOf(pairs []indents, unit string) (models []model) {
	var shifted []model
	for _, tab := range tabs {
		delta := width(pairs[0].file, tab) - width(pairs[0].old, tab)
		fits := true
		for _, p := range pairs {
			fits = fits && width(p.file, tab)-width(p.old, tab) == delta
		}
		switch m := (model{tab: tab, delta: delta}); {
		case !fits:
		case delta == 0:
			models = append(models, m)
		default:
			shifted = append(shifted, m)
		}
	}
	models = append(models, shifted...)
	if len(models) > 0 {
		return models
	}
	return stepped(pairs, unit)
}

// stepped returns the model in which steps stand for steps, if it explains all
// pairs.
func stepped(pairs []indents, unit string) []model {
	m := model{base: len(pairs[0].old), top: len(pairs[0].file)}
	for _, p := range pairs {
		if strings.Contains(p.old, "\t") || strings.Contains(p.file, "\t") {
			return nil
		}
		m.from = gcd(m.from, abs(len(p.old)-m.base))
		m.to = gcd(m.to, abs(len(p.file)-m.top))
	}
	if m.from == 0 || m.to == 0 || len(unit) > 0 && unit[0] == ' ' && m.to%len(unit) != 0 {
		return nil
	}
	for _, p := range pairs {
		if (len(p.old)-m.base)*m.to != (len(p.file)-m.top)*m.from {
			return nil
		}
	}
	return []model{m}
}

// width returns the width of an indentation in spaces. Characters outside ASCII
// count as one.
func width(s string, tab int) (n int) {
	for _, r := range plainBlanks(s) {
		if r == '\t' {
			n += tab
		} else {
			n++
		}
	}
	return n
}

// of returns the indentation in the file for one of new. sure is false if more
// than one is possible.
func (s *shift) of(indent string) (file string, sure bool) {
	if len(s.models) == 0 {
		return indent, true
	}
	for _, p := range s.pairs {
		if p.old == indent {
			return p.file, true
		}
	}
	m, sure := s.model()
	if !sure {
		return "", false
	}
	file, sure = s.extrapolate(m, indent)
	if by := width(indent, m.tab) - width(s.pairs[0].old, m.tab); len(s.pairs) == 1 && m.delta == 0 && by >= 2*m.tab &&
		m.tab < 4 &&
		s.style == "\t" &&
		s.pairs[0].file != "\t" {
		return "", false // either two narrow steps or a wide one
	}
	return file, sure
}

// model returns the model for indentation that old does not have. Without a
// shift it is the first. With a shift that a single indentation shows, the width
// of a tab follows from the step of the side with spaces.
func (s *shift) model() (model, bool) {
	if len(s.models) == 1 || s.models[0].delta == 0 || s.style != "\t" && !s.tabbed {
		return s.models[0], true
	}
	for _, m := range s.models {
		if m.tab == s.step {
			return m, true
		}
	}
	return model{}, false
}

// extrapolate continues from the nearest indentation that is known.
func (s *shift) extrapolate(m model, indent string) (string, bool) {
	tab := max(m.tab, 1)
	near := s.pairs[0]
	w := width(indent, tab)
	for _, p := range s.pairs[1:] {
		at, best := width(p.old, tab), width(near.old, tab)
		if (at <= w && (best > w || at > best)) || (at > w && best > w && at < best) {
			near = p
		}
	}
	by := w - width(near.old, tab)
	if m.tab == 0 {
		if by%m.from != 0 {
			return "", false
		}
		by = by / m.from * m.to
	}
	if by < 0 {
		return trimIndent(near.file, -by, tab)
	}
	if s.style == "\t" {
		if by%tab != 0 && strings.TrimLeft(indent, "\t ") == "" && by > tab && m.delta != 0 {
			return "", false // neither whole steps nor alignment by a few spaces
		}
		return near.file + strings.Repeat("\t", by/tab) + strings.Repeat(" ", by%tab), true
	}
	return near.file + strings.Repeat(" ", by), true
}

// trimIndent removes a width from the end of an indentation. It returns false if
// that would split a tab.
func trimIndent(s string, by, tab int) (string, bool) {
	for by > 0 && s != "" {
		if s[len(s)-1] == '\t' {
			by -= tab
		} else {
			by--
		}
		s = s[:len(s)-1]
	}
	return s, by == 0
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func abs(n int) int { return max(n, -n) }
