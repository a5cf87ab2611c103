package shellpolicy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	mostPatterns = 500
	patternBytes = 300
	mostMatched  = 4 << 10 // bytes of arguments that patterns are compared with; the rest counts as unknown
	mostLeading  = 32      // positions after leading options at which the arguments may begin
)

// pattern is one entry of an allow or deny list.
type pattern struct {
	text    string
	program glob
	byPath  bool // the program is matched as it is written, with its path
	args    glob // with a space before each argument; without tokens it matches any

	with []pattern // of the allow list: programs that this one may start, and those may in turn

	flags    []string // all must occur, in any order; of a pattern that begins with flags
	operands glob     // what must occur besides them
}

func compile(list []string, deny bool) (all []pattern, err error) {
	if len(list) > mostPatterns {
		return nil, fmt.Errorf("%d patterns are more than %d", len(list), mostPatterns)
	}
	for _, text := range list {
		fields := strings.Fields(text)
		var with []string
		if i := slices.Index(fields, "with:"); i >= 0 && !deny {
			fields, with = fields[:i], fields[i+1:]
		}
		if len(fields) == 0 || len(text) > patternBytes {
			return nil, fmt.Errorf(
				"%q is not a pattern; expected one such as ls*, or \"git push*\", of at most %d bytes",
				text,
				patternBytes,
			)
		}
		p := pattern{
			text:    strings.Join(fields, " "),
			program: newGlob(fields[0], deny),
			byPath:  strings.Contains(fields[0], "/"),
		}
		if args := fields[1:]; len(args) > 0 {
			p.args = newGlob(" "+strings.Join(args, " "), deny)
			p.readFlags(args)
		}
		if p.with, err = compile(with, false); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// readFlags determines the flags with which a pattern begins, so that "rm -rf*" also matches rm -f -r.
func (p *pattern) readFlags(args []string) {
	n := 0
	for n < len(args) && len(args[n]) > 1 && args[n][0] == '-' {
		p.flags = append(p.flags, flagsIn(strings.TrimRight(args[n], "*"))...)
		n++
	}
	p.operands = newGlob("*", true)
	if n < len(args) {
		p.operands = newGlob(" "+strings.Join(args[n:], " "), true)
	}
}

// sameFlags are flags with two spellings in nearly all programs.
var sameFlags = map[string]string{"R": "r", "recursive": "r", "force": "f"}

// flagsIn returns the flags of a word; -rf contains two.
func flagsIn(s string) (all []string) {
	if name, ok := strings.CutPrefix(s, "--"); ok {
		name, _, _ = strings.Cut(name, "=")
		all = []string{name}
	} else {
		all = strings.Split(strings.TrimPrefix(s, "-"), "")
	}
	for i, f := range all {
		if same := sameFlags[f]; same != "" {
			all[i] = same
		}
	}
	return all
}

// names reports whether the pattern names a program.
func (p *pattern) names() bool { return !p.program.wild() }

// says reports whether the pattern restricts the arguments.
func (p *pattern) says() bool {
	return slices.ContainsFunc(p.args.tokens, func(t token) bool { return !t.star && t.exact != ' ' })
}

// fit is how certain it is that a pattern matches.
type fit uint8

const (
	no fit = iota
	perhaps
	surely
)

// denies reports how a pattern of the deny list matches.
func (p *pattern) denies(c *simple) fit {
	if !p.isProgram(c) {
		return no
	}
	if len(p.args.tokens) == 0 {
		return surely
	}
	best := no
	for _, from := range c.beginnings() {
		text := argText(c.args()[from:], c.open)
		if p.args.match(text, false) {
			return surely
		}
		if best == no && p.args.match(text, true) {
			best = perhaps
		}
	}
	if len(p.flags) > 0 {
		best = max(best, p.hasFlags(c))
	}
	return best
}

// isProgram reports how a pattern of the deny list matches the program.
func (p *pattern) isProgram(c *simple) bool {
	if p.byPath {
		return p.program.match(c.words[0].text, true)
	}
	return p.program.match(c.name, true) || p.program.match(strings.TrimSuffix(strings.ToLower(c.name), ".exe"), true)
}

// hasFlags reports whether all flags of the pattern occur, and its operands.
func (p *pattern) hasFlags(c *simple) fit {
	have := map[string]bool{}
	var operands []word
	ended := false
	for _, w := range c.args() {
		switch {
		case w.text == "--" && !ended:
			ended = true
		case !ended && len(w.text) > 1 && w.text[0] == '-':
			for _, f := range flagsIn(w.text) {
				have[f] = true
			}
		default:
			operands = append(operands, w)
		}
	}
	for _, f := range p.flags {
		if !have[f] {
			return no
		}
	}
	switch text := argText(operands, c.open); {
	case p.operands.match(text, false):
		return surely
	case p.operands.match(text, true):
		return perhaps
	}
	return no
}

// beginnings returns the positions at which the arguments of a pattern may begin: the first, and those after
// options, each of which may have a value.
func (c *simple) beginnings() []int {
	args := c.args()
	at := []int{0}
	for i := 0; i < len(at) && len(at) < mostLeading; i++ {
		from := at[i]
		if from >= len(args) || !strings.HasPrefix(args[from].text, "-") {
			continue
		}
		for _, next := range []int{from + 1, from + 2} {
			if next <= len(args) && !slices.Contains(at, next) {
				at = append(at, next)
			}
		}
	}
	return at
}

// argText returns the arguments with a space before each.
func argText(args []word, open bool) string {
	var b strings.Builder
	for _, w := range args {
		if w.many {
			b.WriteByte(moreWords)
			continue
		}
		b.WriteByte(' ')
		b.WriteString(w.text)
		if b.Len() > mostMatched {
			return b.String()[:mostMatched] + string(anything)
		}
	}
	if open {
		b.WriteByte(moreWords)
	}
	return b.String()
}

// allows reports whether a pattern of the allow list certainly matches.
func (p *pattern) allows(c *simple) bool {
	if p.byPath {
		if text, ok := c.words[0].known(); !ok || !p.program.match(text, false) {
			return false
		}
	} else if !p.program.match(c.name, false) || !ofSystem(c.words[0]) {
		return false
	}
	return len(p.args.tokens) == 0 || p.args.match(argText(c.args(), c.open), false)
}

// wouldAllow reports whether only the folder of the program is wrong.
func (p *pattern) wouldAllow(c *simple) bool {
	return !p.byPath && p.program.match(c.name, false) && !ofSystem(c.words[0])
}

// systemFolders are folders in which a program can be trusted to be what its name says.
var systemFolders = []string{
	"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin", "/snap/bin",
}

// ofSystem reports whether a program is looked up by its name or is in a folder of the system.
func ofSystem(w word) bool {
	text, ok := w.known()
	if !ok || !strings.Contains(text, "/") {
		return ok
	}
	return slices.Contains(systemFolders, path.Dir(text)) && path.Clean(text) == text
}
