package shellpolicy

import (
	"path"
	"slices"
	"strings"
)

// An Image is a file that the kernel has loaded as a program, or the script for which it has loaded an interpreter.
// It is judged like a command of a line, but by the file and not by the name in the line.
type Image struct {
	Paths  []string // the path without links, and the known links to it
	Copies []string // known files with the same content, which deny patterns also match
	Names  []string // its names in the folders of programs; an allow pattern without a path needs one
	Args   []string // without the program's name
	Cut    bool     // Args are only the first ones
}

// Listed reports whether there is an allow list.
func (r *Rules) Listed() bool { return r != nil && len(r.allow) > 0 }

// Denying returns the pattern of the deny list that matches an image, or that may match because not all arguments
// are known.
func (r *Rules) Denying(m *Image) (pattern string, denied bool) {
	for i := range r.deny {
		p := &r.deny[i]
		for _, file := range slices.Concat(m.Paths, m.Copies) {
			if p.denies(m.commandOf(file)) != no {
				return p.text, true
			}
		}
	}
	return "", false
}

// Allowing returns the indexes of the patterns of the allow list that match an image.
func (r *Rules) Allowing(m *Image) (entries []int) {
	for i := range r.allow {
		if r.allow[i].allowsImage(m) {
			entries = append(entries, i)
		}
	}
	return entries
}

// AllowedWith reports whether an entry of the allow list lets its program run an image.
func (r *Rules) AllowedWith(entry int, m *Image) bool {
	return entry < len(r.allow) && slices.ContainsFunc(r.allow[entry].with, func(p pattern) bool {
		return p.allowsImage(m)
	})
}

// Programs returns the globs on names and paths of programs in the lists, with which their files are found.
func (r *Rules) Programs() (allow, deny []string) {
	for _, p := range r.allow {
		allow = append(allow, p.programText())
		for _, w := range p.with {
			allow = append(allow, w.programText())
		}
	}
	for _, p := range r.deny {
		deny = append(deny, p.programText())
	}
	return allow, deny
}

func (p *pattern) programText() string {
	name, _, _ := strings.Cut(p.text, " ")
	return name
}

// Matches reports whether a name matches a glob of a deny pattern, ignoring case.
func Matches(pattern, name string) bool {
	g := newGlob(pattern, true)
	return g.match(name, false)
}

func (m *Image) commandOf(file string) *simple {
	c := &simple{words: []word{literal(file)}, name: path.Base(file), open: m.Cut}
	for _, a := range m.Args {
		c.words = append(c.words, literal(a))
	}
	return c
}

func (p *pattern) allowsImage(m *Image) bool {
	named := m.Names
	if p.byPath {
		named = m.Paths
	}
	return slices.ContainsFunc(named, func(name string) bool { return p.program.match(name, false) }) &&
		(len(p.args.tokens) == 0 || p.args.match(argText(m.commandOf("").args(), m.Cut), false))
}

// IsInterpreter reports whether a program of this name runs a file that it is given.
func IsInterpreter(name string) bool {
	name = plainName(name)
	return dialect(name) != foreign || slices.Contains(interpreters, name)
}

// RunsOthers reports whether a program of this name starts other programs.
func RunsOthers(name string) bool {
	name = plainName(name)
	_, wraps := wrappers[name]
	return wraps || dialect(name) != foreign || carriers[name] != "" ||
		slices.Contains([]string{"find", "xargs", "awk", "sed", "hush", "crond", "inetd"}, name)
}

// builtins are commands that shells implement themselves, and redirection.
var builtins = strings.Fields(`
	> . : [ alias bg bind break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
	exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf print pushd
	pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask
	unalias unset wait whence
`)

// meansBuiltin reports whether the pattern may match a command that the shell implements itself.
func (p *pattern) meansBuiltin() bool {
	return !p.byPath && slices.ContainsFunc(builtins, func(name string) bool { return p.program.match(name, true) })
}
