// Package shellpolicy judges a shell command line against allow and deny patterns.
//
// The line is parsed and every simple command in it is judged, in pipes, lists, substitutions and functions, and
// also behind programs that run others: env, sh -c, xargs, find -exec and many more. A deny pattern overrides
// everything else. If there is any pattern, what cannot be judged is refused: a program whose name comes from an
// expansion, a line that cannot be parsed, or one that is too long or nested too deep.
//
// A line does not show what its programs do: a script, an interpreter or a build tool that is allowed may run
// anything. On Linux, package supervisor compares each program that a line starts with the same lists when the
// kernel has loaded it. The judgement of the line is then an early answer with a reason that a user can act on; on
// other systems it is the only one.
package shellpolicy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"gatehouse/internal/access/displaytext"
)

const (
	// MaxLine is the longest line that is judged, in bytes.
	MaxLine = 64 << 10
	// MaxDepth limits the nesting of command lines and of programs that run others.
	MaxDepth = 16

	mostParsed   = 512 << 10 // bytes of all lines within a line
	mostCommands = 5000      // simple commands of a line
	mostWords    = 5000      // of one of them, after brace expansion
	mostReported = 100       // commands that Verdict.Commands holds
	mostShown    = 200       // bytes of a command in a verdict
)

// Rules are the patterns of allow and deny lists. They are safe for concurrent use.
type Rules struct{ allow, deny []pattern }

// New compiles patterns. Each is a glob on the program's base name (*, ? and
// [a-z]), and after a space, optionally, one on its arguments as they are
// joined by spaces: "git push*". Note that "ls*" also means lsblk.
//
// An empty allow list allows what is not denied. A name that is allowed is
// looked up by the shell or lies in a folder of the system; a program
// elsewhere is allowed by a pattern with its path, "./configure". Names are
// denied wherever they lie, in any case, and with options in front of the
// arguments. The program ">" stands for writing to a file by redirection,
// with the file as its argument.
//
// An allow pattern may end in "with:" and names or paths of programs, "npm
// with: env node": those may be started by the program and by what it starts,
// and not by the line itself. Only the kernel's report of a program can tell
// that; see Image.
func New(allow, deny []string) (*Rules, error) {
	r := &Rules{}
	var err error
	if r.allow, err = compile(allow, false); err != nil {
		return nil, fmt.Errorf("allow: %w", err)
	}
	if r.deny, err = compile(deny, true); err != nil {
		return nil, fmt.Errorf("deny: %w", err)
	}
	return r, nil
}

// Empty reports whether there is no pattern, so that every line is allowed without being parsed.
func (r *Rules) Empty() bool { return r == nil || len(r.allow)+len(r.deny) == 0 }

// Decision is the decision about a line. The zero value refuses.
type Decision uint8

const (
	Unclear  Decision = iota // it cannot be judged, and is refused
	Denied                   // a pattern denies one of its commands
	Unlisted                 // there is an allow list, and a command is not on it
	Allowed
)

func (d Decision) String() string {
	return [...]string{"unclear", "denied", "unlisted", "allowed"}[min(d, Allowed)]
}

// worse ranks the decisions; the most severe comes first.
var worse = [...]int{Denied: 0, Unclear: 1, Unlisted: 2, Allowed: 3}

// Verdict is a decision and its reason. The zero value refuses.
type Verdict struct {
	Decision Decision
	Command  string   // the simple command that decided, with "…" for unknown parts; "" if all are allowed
	Pattern  string   // the pattern that decided, or may match; "" if none did
	Reason   string   // a sentence without its full stop; "" if allowed
	Commands []string // the simple commands that were found, at most 100
}

// Allowed reports whether the line may run.
func (v Verdict) Allowed() bool { return v.Decision == Allowed }

// Judge decides about a line that is passed to a shell with -c. The shell is a name or a path; sh means any POSIX
// shell, so its lines are judged both as POSIX shell and as bash, which may have that name.
func (r *Rules) Judge(line, shell string) Verdict {
	if r.Empty() {
		return Verdict{Decision: Allowed}
	}
	j := &judging{rules: r, verdict: Verdict{Decision: Allowed}}
	j.shell(line, path.Base(strings.ReplaceAll(shell, `\`, "/")), 0)
	return j.verdict
}

// JudgeEarly is Judge for a host to which the kernel reports each program that a line starts; see Image. It refuses
// what is certain to be refused, with a better reason than the kernel's report allows, and leaves to the report
// what programs are made to run. Commands of the shell itself and redirections never reach the kernel, so it
// refuses those that are unclear if a deny pattern means one or there is an allow list.
func (r *Rules) JudgeEarly(line, shell string) Verdict {
	if r.Empty() {
		return Verdict{Decision: Allowed}
	}
	j := &judging{rules: r, verdict: Verdict{Decision: Allowed}, early: true}
	j.builtins = slices.ContainsFunc(r.deny, func(p pattern) bool { return p.meansBuiltin() })
	j.lenient = len(r.allow) == 0 && !j.builtins
	j.shell(line, path.Base(strings.ReplaceAll(shell, `\`, "/")), 0)
	return j.verdict
}

// judging is the state of judging one line.
type judging struct {
	rules   *Rules
	verdict Verdict
	parsed  int           // bytes so far
	found   int           // commands so far
	each    func(*simple) // called for each command whose program is known; nil is not

	early    bool // the kernel reports each program, so that what one runs is judged then
	builtins bool // a deny pattern means a command of the shell itself, which the kernel does not report
	lenient  bool // nothing has to be clear from the line alone
}

// decide records a decision; the most severe one counts, and of equal ones the first.
func (j *judging) decide(d Decision, cmd, pattern, format string, args ...any) {
	v := &j.verdict
	if j.lenient && d == Unclear {
		return
	}
	if worse[d] < worse[v.Decision] {
		v.Decision, v.Command, v.Pattern, v.Reason = d, cmd, pattern, fmt.Sprintf(format, args...)
	}
}

func (j *judging) unclear(cmd, format string, args ...any) {
	j.decide(Unclear, cmd, "", format, args...)
}

// shell judges a line for a shell with a base name.
func (j *judging) shell(line, name string, depth int) {
	switch dialect(name) {
	case posix:
		j.judgeLine(line, syntax.LangPOSIX, depth)
		j.judgeLine(line, syntax.LangBash, depth)
	case bash:
		j.judgeLine(line, syntax.LangBash, depth)
	case plain:
		// Other shells agree with bash on lines without special characters.
		if i := strings.IndexFunc(line, isSpecial); i >= 0 {
			r, _ := utf8.DecodeRuneInString(line[i:])
			j.unclear("", "what %q means to %s is not known here; only plain commands can be judged for it", r, name)
		}
		j.judgeLine(line, syntax.LangBash, depth)
	default:
		j.unclear("", "the language of %s is not known here", name)
	}
}

type language uint8

const (
	foreign language = iota
	posix
	bash
	plain
)

// dialect is the language of a shell.
func dialect(name string) language {
	switch name = plainName(name); name {
	case "sh", "dash", "ash":
		return posix
	case "bash", "rbash":
		return bash
	case "zsh", "ksh", "mksh", "yash":
		return plain
	}
	return foreign
}

// isSpecial reports whether zsh or ksh may interpret a character differently.
func isSpecial(r rune) bool {
	safe := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		strings.ContainsRune("_./:,@%+- '\";|&<>\n\t", r)
	return !safe
}

// judgeLine judges a command line in one language.
func (j *judging) judgeLine(line string, lang syntax.LangVariant, depth int) {
	j.parsed += len(line)
	switch {
	case depth > MaxDepth:
		j.unclear("", "commands are nested more than %d deep", MaxDepth)
		return
	case len(line) > MaxLine || j.parsed > mostParsed:
		j.unclear("", "the line is longer than %d bytes, or the lines within it are too long", MaxLine)
		return
	case !utf8.ValidString(line) || strings.ContainsFunc(line, isControl):
		j.unclear("", "the line holds control characters, or bytes that are no UTF-8")
		return
	}
	file, err := parseLine(line, lang)
	if err != nil {
		j.unclear("", "the line cannot be parsed: %v", err)
		return
	}
	w := walker{judging: j, lang: lang, depth: depth, source: line}
	syntax.Walk(file, w.visit)
}

func isControl(r rune) bool { return (r < ' ' && r != '\n' && r != '\t') || r == 0x7f }

// parseLine returns an error for every mistake in a line, including panics of the parser.
func parseLine(line string, lang syntax.LangVariant) (f *syntax.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("%v", p)
		}
	}()
	return syntax.NewParser(syntax.Variant(lang)).Parse(strings.NewReader(line), "")
}

// command judges one simple command. open means that further, unknown arguments follow.
func (j *judging) command(words []word, open bool, lang syntax.LangVariant, depth int) {
	if len(words) == 0 {
		return
	}
	shown := formatWords(words, open)
	if j.found++; len(j.verdict.Commands) < mostReported && !slices.Contains(j.verdict.Commands, shown) {
		j.verdict.Commands = append(j.verdict.Commands, shown)
	}
	switch {
	case j.found > mostCommands || len(words) > mostWords:
		j.unclear(shown, "there are too many commands or words")
		return
	case depth > MaxDepth:
		j.unclear(shown, "commands are nested more than %d deep", MaxDepth)
		return
	}
	name, ok := words[0].base()
	if !ok {
		j.unclear(shown, "the program's name comes from an expansion, so it is not known here")
		return
	}
	if len(name) > 1 && name[0] == '-' {
		j.unclear(shown, "%s stands where a program is expected, and shells may take it for an option", name)
		return
	}
	c := simple{words: words, open: open, name: name, shown: shown, lang: lang, depth: depth}
	if j.each != nil {
		j.each(&c)
	}
	j.denied(&c)
	if why := carries(&c); why != "" && !j.early && !j.named(&c) {
		j.unclear(shown, "%s; an allow pattern that names %s with these arguments lets it pass", why, name)
	}
	j.allowed(&c)
	was := j.lenient
	j.lenient = was || j.early && !j.builtins && !slices.Contains(builtins, plainName(name))
	j.unwrap(&c)
	j.lenient = was
}

// simple is a simple command whose program is known.
type simple struct {
	words []word
	open  bool
	name  string // the program's base name
	shown string
	lang  syntax.LangVariant
	depth int
}

func (c *simple) args() []word { return c.words[1:] }

// denied compares a command with the deny list.
func (j *judging) denied(c *simple) {
	for i := range j.rules.deny {
		p := &j.rules.deny[i]
		switch p.denies(c) {
		case surely:
			j.decide(Denied, c.shown, p.text, "the pattern %q denies %s", p.text, c.shown)
		case perhaps:
			j.decide(Unclear, c.shown, p.text, "an expansion may make it what the pattern %q denies", p.text)
		}
	}
}

// allowed compares a command with the allow list.
func (j *judging) allowed(c *simple) {
	if j.early && c.depth > 0 && c.name != ">" {
		return // another command runs it, and its entry may say that it may
	}
	if len(j.rules.allow) == 0 || slices.ContainsFunc(j.rules.allow, func(p pattern) bool { return p.allows(c) }) {
		return
	}
	if slices.ContainsFunc(j.rules.allow, func(p pattern) bool { return p.wouldAllow(c) }) {
		j.decide(
			Unlisted,
			c.shown,
			"",
			"%s is not the %s of the system that is allowed by name; it has to be allowed by its path",
			c.words[0].formatWord(),
			c.name,
		)
		return
	}
	j.decide(Unlisted, c.shown, "", "no pattern of the allow list fits %s", c.shown)
}

// named reports whether an allow pattern names the program with arguments, in contrast to a pattern
// that allows every program: an administrator who allows git means git itself, not the programs that
// git is made to run.
func (j *judging) named(c *simple) bool {
	return slices.ContainsFunc(j.rules.allow, func(p pattern) bool { return p.names() && p.says() && p.allows(c) })
}

// formatWords formats a command for a message.
func formatWords(words []word, open bool) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w.formatWord())
		if b.Len() > mostShown {
			break
		}
	}
	if open {
		b.WriteString(" …")
	}
	s := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, b.String())
	return displaytext.Cut(s, mostShown, "…")
}
