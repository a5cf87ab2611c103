package shellpolicy

import (
	"errors"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Found is one program that a command line runs, without the quoting of the line: sh -c 'r\m x' runs sh
// and rm.
type Found struct {
	Program string   // as the shell looks it up: rm, /bin/rm
	Name    string   // its last element in lower case, because some file systems ignore case
	Args    []string // nil if an expansion produces some of them
	Known   bool     // Args are all of the arguments
}

// Line returns the programs that a line runs if it is passed to a shell with -c, through pipes, lists,
// substitutions, and programs that run others. The program ">" stands for writing to a file by
// redirection. It returns an error if the text of the line does not determine what runs.
func Line(line, shell string) ([]Found, error) {
	return findCommands(func(j *judging) { j.shell(line, path.Base(strings.ReplaceAll(shell, `\`, "/")), 0) })
}

// Program is Line for a program that is started with arguments, without a shell.
func Program(argv ...string) ([]Found, error) {
	words := make([]word, len(argv))
	for i, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, errors.New("an argument holds a NUL byte")
		}
		words[i] = literal(a)
	}
	return findCommands(func(j *judging) { j.command(words, false, syntax.LangBash, 0) })
}

func findCommands(judge func(*judging)) ([]Found, error) {
	found := []Found{}
	j := &judging{rules: &Rules{}, verdict: Verdict{Decision: Allowed}, each: func(c *simple) {
		f := Found{Program: c.words[0].text, Name: strings.ToLower(c.name), Args: []string{}, Known: !c.open}
		for _, w := range c.args() {
			text, ok := w.known()
			f.Args, f.Known = append(f.Args, text), f.Known && ok
		}
		if !f.Known {
			f.Args = nil
		}
		found = append(found, f)
	}}
	judge(j)
	if v := j.verdict; !v.Allowed() {
		return nil, errors.New(v.Reason)
	}
	return found, nil
}
