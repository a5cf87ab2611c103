package shellpolicy

import "strings"

// options are how the options of a program are read that runs another one.
// Short ones are letters, long ones words; ":" says that a value follows, "?"
// that one may be attached, "!" that what it does is not known here, "." that
// nothing is run then, and "=" that the value is a placeholder.
type options struct {
	all      string
	operands int  // words before the command
	assigns  bool // NAME=value may come before the command
	numbers  bool // -10 is an option
}

// wrappers are programs that run the command which their arguments are.
var wrappers = map[string]options{
	"env": {all: "i 0 v u: C: a: S! P! ignore-environment null debug unset: chdir: argv0: split-string! " +
		"block-signal default-signal ignore-signal list-signal-handling help. version.", assigns: true},
	"nohup":  {all: "help. version."},
	"setsid": {all: "c f w ctty fork wait help. version. h. V."},
	"nice":   {all: "n: adjustment: help. version.", numbers: true},
	"ionice": {all: "c: n: t p! P! u! class: classdata: ignore help. version."},
	"timeout": {
		all:      "s: k: f p v signal: kill-after: foreground preserve-status verbose help. version.",
		operands: 1,
	},
	"time":          {all: "p v a q f: o! format: output! append verbose quiet portability help. version."},
	"command":       {all: "p v. V."},
	"builtin":       {},
	"exec":          {all: "c l a:"},
	"noglob":        {},
	"nocorrect":     {},
	"-":             {},
	"stdbuf":        {all: "i: o: e: input: output: error: help. version."},
	"chroot":        {all: "userspec: groups: skip-chdir help. version.", operands: 1},
	"taskset":       {all: "a c p! all-tasks cpu-list pid!", operands: 1},
	"linux":         {},
	"nocache":       {all: "n:"},
	"chronic":       {all: "v e"},
	"unbuffer":      {all: "p"},
	"caffeinate":    {all: "d i m s u t: w:"},
	"proxychains":   {all: "q f!"},
	"torsocks":      {all: "i"},
	"eatmydata":     {},
	"gosu":          {operands: 1},
	"su-exec":       {operands: 1},
	"dumb-init":     {all: "c v single-child verbose"},
	"setuidgid":     {operands: 1},
	"chpst":         {all: "u: U: b: e! / m: d: o: p: f: c: r: t: l: L: P 0"},
	"faketime":      {all: "m f", operands: 1},
	"with-contenv":  {},
	"with-lockfile": {operands: 1},
	"sudo": {
		all: "A b E? e! g: H h! i! K. k l. n P p: R: r: S s! T: t: U: u: V. v. C: D: B N askpass background " +
			"preserve-env? chdir: group: host! " +
			"set-home login! shell! edit! list. non-interactive preserve-groups prompt: chroot: role: stdin type: " +
			"user: version. validate. help.",
		assigns: true,
	},
	"doas": {all: "n L. s! u: C! a:"},

	"xargs": {
		all: "0 r t p x o a: d: E: e? I= i! L: l? n: P: s: J: null arg-file: delimiter: eof? replace! max-lines? " +
			"max-args: max-procs: max-chars: " +
			"no-run-if-empty verbose interactive exit open-tty show-limits process-slot-var: help. version.",
	},
	"parallel": {
		all: "j: k n: N: L: P: q! m X I! i! a: v t 0 u jobs: keep-order max-args: max-procs: verbose dry-run. " +
			"dryrun. halt: bar progress eta " +
			"no-notice will-cite tag line-buffer lb ungroup null delimiter: d: colsep: C: joblog! results! timeout: " +
			"retries: delay: pipe! help. version.",
	},
	"watch": {
		all: "d? n: t b e g c x p q: w r interval: differences? no-title beep errexit chgexit color exec precise " +
			"equexit: no-wrap help. version. h. v.",
	},
}

// wrapper judges the command that a wrapper runs.
func (j *judging) wrapper(c *simple, o *options) {
	if run, _, ok := j.options(c, o); ok {
		j.inner(c, run, c.open)
	}
}

// options finds the command behind a wrapper's own options and operands. It is
// not ok when there is none, or when that was unclear, which has been said
// then. replace is the value of an option that names a placeholder.
func (j *judging) options(c *simple, o *options) (run []word, replace string, ok bool) {
	r := optionReader{options: o, args: c.args()}
	for len(r.args) > 0 && r.nextOption() {
	}
	if r.why != "" {
		j.unclear(c.shown, "%s of %s", r.why, c.name)
		return nil, "", false
	}
	if r.nothing {
		return nil, "", false
	}
	for range o.operands {
		if len(r.args) == 0 {
			break
		}
		if r.args[0].many {
			j.unclear(c.shown, "where the command of %s begins depends on an expansion", c.name)
			return nil, "", false
		}
		r.args = r.args[1:]
	}
	for o.assigns && len(r.args) > 0 && strings.Contains(r.args[0].text, "=") && !r.args[0].many {
		name, _, _ := strings.Cut(r.args[0].text, "=")
		if strings.IndexByte(name, anything) >= 0 {
			break // it has no name that is known as a program either
		}
		if Steers(name) {
			j.unclear(c.shown, "the variable %s changes what other commands do", name)
		}
		r.args = r.args[1:]
	}
	return r.args, r.replace, true
}

// optionReader reads the options at the beginning of arguments.
type optionReader struct {
	*options
	args    []word
	replace string
	nothing bool   // an option says that nothing is run
	why     string // it is unclear
}

// nextOption reads one option; false when there is none any more.
func (r *optionReader) nextOption() bool {
	w := r.args[0]
	switch {
	case w.mayBeOption():
		r.why = "an expansion may be an option"
		return false
	case w.text == "--":
		r.args = r.args[1:]
		return false
	case w.text == "-" && r.assigns: // of env
		r.args = r.args[1:]
		return true
	case len(w.text) < 2 || w.text[0] != '-':
		return false
	}
	r.args = r.args[1:]
	switch {
	case r.numbers && strings.Trim(w.text[1:], "0123456789-") == "":
	case strings.HasPrefix(w.text, "--"):
		r.long(w.text[2:])
	default:
		r.short(w.text[1:])
	}
	return r.why == ""
}

// kind is how an option is read: one of the marks of options, or 0 for an
// option without a value.
func (r *optionReader) kind(name string) (mark byte, known bool) {
	for f := range strings.FieldsSeq(r.all) {
		if f == name {
			return 0, true
		}
		if rest, ok := strings.CutPrefix(f, name); ok && len(rest) == 1 && strings.Contains(":?!.=", rest) {
			return rest[0], true
		}
	}
	return 0, false
}

func (r *optionReader) long(text string) {
	name, value, attached := strings.Cut(text, "=")
	mark, known := r.kind(name)
	if len(name) < 2 || !known || mark == '!' || strings.IndexByte(name, anything) >= 0 {
		r.why = "what the option --" + literal(name).formatWord() + " does is not known here"
		return
	}
	r.applyMark(mark, value, attached)
}

func (r *optionReader) short(letters string) {
	for i, l := range letters {
		mark, known := r.kind(string(l))
		if !known || mark == '!' {
			r.why = "what the option -" + literal(string(l)).formatWord() + " does is not known here"
			return
		}
		rest := letters[i+len(string(l)):]
		if mark == '?' {
			return
		}
		if mark != 0 {
			r.applyMark(mark, rest, rest != "")
			if mark != '.' {
				return
			}
		}
	}
}

// applyMark does what the mark of an option says.
func (r *optionReader) applyMark(mark byte, value string, attached bool) {
	switch mark {
	case '.':
		r.nothing = true
	case ':', '=':
		if !attached {
			if len(r.args) == 0 {
				return
			}
			if r.args[0].many {
				r.why = "where an option ends depends on an expansion"
				return
			}
			value, r.args = r.args[0].text, r.args[1:]
		}
		if mark == '=' {
			r.replace = value
		}
	}
}
