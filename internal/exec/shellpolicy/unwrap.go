package shellpolicy

import (
	"slices"
	"strings"
)

// unwrap judges the commands that a command runs.
func (j *judging) unwrap(c *simple) {
	switch name := plainName(c.name); name {
	case ".", "source":
		j.unclear(c.shown, "what %s reads is not known here", c.name)
	case "eval":
		j.joined(c, c.args(), "")
	case "trap":
		j.trap(c)
	case "alias":
		j.alias(c)
	case "find", "gfind":
		j.findSimple(c)
	case "xargs", "gxargs":
		j.xargs(c)
	case "parallel":
		j.parallel(c)
	case "busybox", "toybox":
		j.inner(c, c.args(), c.open)
	case "watch":
		j.judgeWatch(c)
	default:
		if dialect(name) != foreign || strings.Contains(" csh tcsh fish nu xonsh elvish ", " "+name+" ") {
			j.ofShell(c, name)
		} else if s, ok := wrappers[name]; ok {
			j.wrapper(c, &s)
		} else {
			j.builtin(c, name)
		}
	}
}

// inner judges a command that another one runs.
func (j *judging) inner(c *simple, words []word, open bool) {
	switch {
	case len(words) > 0:
		j.command(words, open, c.lang, c.depth+1)
	case open:
		j.unclear(c.shown, "what %s runs comes from its input", c.name)
	}
}

// joined judges words that form a line when they are joined, for a shell or, for "", for the shell that reads this
// line.
func (j *judging) joined(c *simple, words []word, shell string) {
	var line []string
	for _, w := range words {
		text, ok := w.known()
		if !ok {
			j.unclear(c.shown, "what %s runs comes from an expansion", c.name)
			return
		}
		line = append(line, text)
	}
	switch {
	case c.open:
		j.unclear(c.shown, "what %s runs comes from its input", c.name)
	case len(line) == 0:
	case shell == "":
		j.judgeLine(strings.Join(line, " "), c.lang, c.depth+1)
	default:
		j.shell(strings.Join(line, " "), shell, c.depth+1)
	}
}

// ofShell judges sh -c and similar commands.
func (j *judging) ofShell(c *simple, name string) {
	args := c.args()
	text := false
	for ; len(args) > 0; args = args[1:] {
		w := args[0]
		if w.mayBeOption() {
			j.unclear(c.shown, "what %s runs comes from an expansion", c.name)
			return
		}
		if w.text == "--help" || w.text == "--version" {
			return
		}
		if w.text == "--" || w.text == "-" {
			args = args[1:]
			break
		}
		if len(w.text) < 2 || w.text[0] != '-' && w.text[0] != '+' {
			break
		}
		if long, ok := strings.CutPrefix(w.text, "--"); ok {
			if !strings.Contains(" norc noprofile posix restricted login verbose ", " "+long+" ") {
				j.unclear(c.shown, "what the option --%s of %s does is not known here", long, c.name)
				return
			}
			continue
		}
		if strings.ContainsAny(w.text, "si") {
			j.unclear(c.shown, "%s reads its commands from its input", c.name)
			return
		}
		text = text || w.text[0] == '-' && strings.Contains(w.text, "c")
		if strings.ContainsAny(w.text, "oO") && len(args) > 1 {
			args = args[1:]
		}
	}
	switch {
	case text && len(args) > 0:
		line, ok := args[0].known()
		if !ok {
			j.unclear(c.shown, "what %s runs comes from an expansion", c.name)
			return
		}
		j.shell(line, name, c.depth+1)
	case text && !c.open:
		// an error of its own
	case len(args) > 0 && !text:
		j.unclear(c.shown, "%s runs a file whose commands are not known here", c.name)
	default:
		j.unclear(c.shown, "%s reads its commands from its input", c.name)
	}
}

// trap judges the command of a trap.
func (j *judging) trap(c *simple) {
	args := c.args()
	for len(args) > 0 && (args[0].text == "--" || args[0].text == "-l" || args[0].text == "-p") {
		args = args[1:]
	}
	if len(args) > 1 || c.open {
		j.joined(c, args[:min(1, len(args))], "")
	}
}

// alias judges the text of an alias. The effect of that text together with the words after it is unknown.
func (j *judging) alias(c *simple) {
	for _, w := range c.args() {
		_, value, defines := strings.Cut(w.text, "=")
		if text, ok := literal(value).known(); defines && ok && !w.many {
			j.judgeLine(text, c.lang, c.depth+1)
		}
		if defines || w.many || w.text == string(anything) {
			j.unclear(c.shown, "an alias changes what later commands mean")
		}
	}
}

// findActions are the expressions with which find runs, deletes or writes something.
var findActions = []string{"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fls", "-fprintf"}

// findSimple judges what find runs, deletes and writes.
func (j *judging) findSimple(c *simple) {
	args := c.args()
	for i := 0; i < len(args); i++ {
		w := args[i]
		switch w.text {
		case "-exec", "-execdir", "-ok", "-okdir":
			var run []word
			for i++; i < len(args) && args[i].text != ";"; i++ {
				if args[i].text == "+" && len(run) > 0 && run[len(run)-1].text == string(anything) {
					break
				}
				x := args[i]
				x.text = strings.ReplaceAll(x.text, "{}", string(anything))
				run = append(run, x)
			}
			j.inner(c, run, false)
		case "-delete":
			j.inner(c, []word{literal("rm"), {text: string(anything)}}, false)
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(args) {
				i++
				j.inner(c, []word{literal(">"), args[i]}, false)
			}
		default:
			if w.splits || slices.ContainsFunc(findActions, w.mayBe) {
				j.unclear(c.shown, "an expansion may make %s run something", c.name)
			}
		}
	}
	if c.open {
		j.unclear(c.shown, "what %s runs comes from its input", c.name)
	}
}

// xargs judges the command of xargs, whose arguments are unknown.
func (j *judging) xargs(c *simple) {
	s := wrappers["xargs"]
	run, replace, ok := j.options(c, &s)
	if !ok {
		return
	}
	if len(run) == 0 && !c.open {
		run = []word{literal("echo")}
	}
	if replace != "" {
		for i := range run {
			run[i].text = strings.ReplaceAll(run[i].text, replace, string(anything))
		}
	}
	j.inner(c, run, true)
}

// parallel judges a command that a shell runs for every argument.
func (j *judging) parallel(c *simple) {
	s := wrappers["parallel"]
	run, _, ok := j.options(c, &s)
	if !ok {
		return
	}
	for i, w := range run {
		if strings.HasPrefix(w.text, ":::") {
			run = run[:i]
			break
		}
	}
	if len(run) == 0 {
		j.unclear(c.shown, "what %s runs comes from its input", c.name)
		return
	}
	if strings.Contains(run[0].text, "{") {
		j.unclear(c.shown, "what %s runs comes from an expansion", c.name)
	}
	j.joined(c, run, "sh")
}

// judgeWatch judges a command that a shell runs repeatedly.
func (j *judging) judgeWatch(c *simple) {
	s := wrappers["watch"]
	if run, _, ok := j.options(c, &s); ok {
		j.joined(c, run, "sh")
	}
}

// builtin judges commands of a shell that run something or change the meaning of others.
func (j *judging) builtin(c *simple, name string) {
	switch name {
	case "hash":
		j.refuseOptions(c, "p")
	case "enable":
		j.refuseOptions(c, "fnd")
	case "complete", "compgen":
		j.refuseOptions(c, "CFW")
	case "bind":
		j.refuseOptions(c, "xf")
	case "mapfile", "readarray":
		j.refuseOptions(c, "C")
		j.variables(c)
	case "declare", "typeset", "local", "export", "readonly":
		if name != "export" {
			j.refuseOptions(c, "inaA") // numbers and arrays are evaluated
		}
		j.variables(c)
	case "let":
		if slices.ContainsFunc(
			c.args(),
			func(w word) bool { return strings.Trim(w.text, "0123456789+-*/%() ") != "" || w.many },
		) {
			j.unclear(c.shown, "arithmetic over a variable may run what that holds")
		}
	case "unset", "wait":
		if name == "unset" || len(c.args()) > 0 && strings.HasPrefix(c.args()[0].text, "-") {
			j.variables(c)
		}
	case "test", "[":
		j.tested(c)
	case "nameref", "fc", "repeat", "autoload", "zmodload", "emulate", "sched", "zle", "foreach":
		j.unclear(c.shown, "what %s does is not known here", c.name)
	case "read", "getopts", "vared":
		j.variables(c)
	case "printf":
		if args := c.args(); len(args) > 0 && strings.HasPrefix(args[0].text, "-v") {
			j.variables(c)
		}
	}
}

// refuseOptions refuses options with which a command runs something.
func (j *judging) refuseOptions(c *simple, letters string) {
	for _, w := range c.args() {
		if w.mayBeOption() ||
			len(w.text) > 1 && (w.text[0] == '-' || w.text[0] == '+') && strings.ContainsAny(w.text, letters) {
			j.unclear(c.shown, "%s changes what other commands mean", c.name)
			return
		}
	}
}

// tested judges tests of a variable, which evaluate its subscript.
func (j *judging) tested(c *simple) {
	args := c.args()
	for i, w := range args {
		is := w.text == "-v" || w.text == "-R"
		if !is && !w.mayBe("-v") && !w.mayBe("-R") || i+1 >= len(args) {
			continue
		}
		if next := args[i+1]; strings.Contains(next.text, "[") ||
			is && (next.many || strings.IndexByte(next.text, anything) >= 0) {
			j.unclear(c.shown, "a test of a variable may run what its subscript holds")
		}
	}
}

// variables judges the variables that a command assigns.
func (j *judging) variables(c *simple) {
	for _, w := range c.args() {
		name, _, _ := strings.Cut(w.text, "=")
		name = strings.TrimPrefix(name, "-v")
		if w.many || strings.IndexByte(name, anything) >= 0 || strings.Contains(name, "[") {
			j.unclear(c.shown, "which variable %s changes comes from an expansion", c.name)
		} else if Steers(name) {
			j.unclear(c.shown, "the variable %s changes what other commands do", name)
		}
	}
}
