package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/exec/supervisor"
)

// shellCommand groups the commands about command lines.
func shellCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:     "shell",
		Short:   "Find out what command lines need",
		Example: "  gatehouse shell learn -- 'make && git status'",
		Args:    knownCommand,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "learn -- COMMAND",
		Short: "Run a command and print the allow list that it needs",
		Long: `Run a command and print the list for modules.shell.allow that it needs. The
command runs with the rights of this user, unrestricted, and its output goes to
standard error. A single argument is a line of sh; several are a program and its
arguments.

A program that the command line starts itself becomes an entry; what runs below
that program follows with:. The list has what this run needed, so run the command
as it will be run later.`,
		Example: "  gatehouse shell learn -- 'make && git status'\n  gatehouse shell learn -- npm test",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("a command is needed: gatehouse shell learn -- make")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return learn(c, w, args) },
	})
	return c
}

func learn(c *cobra.Command, w Environment, args []string) error {
	if err := supervisor.Available(c.Context()); err != nil {
		return err
	}
	line := args[0]
	if len(args) > 1 {
		line = quoteLine(args)
	}
	programs, err := learnLine(c, w, line)
	if err != nil {
		return err
	}
	patterns := supervisor.AllowList(programs)
	if patterns, err = addRead(patterns, line); err != nil {
		fmt.Fprintf(w.Err, "[gatehouse] this list does not let the line pass: %v\n", err)
	}
	slices.Sort(patterns)
	fmt.Fprint(w.Out, "modules:\n  shell:\n    allow:\n")
	for _, p := range patterns {
		fmt.Fprintf(w.Out, "      - %s\n", quoteYAML(p))
	}
	return nil
}

// mostRead limits the commands that the reading of a line adds to a list.
const mostRead = 100

// addRead adds the commands that a list needs because a line is read before it runs: those of the shell itself.
func addRead(patterns []string, line string) ([]string, error) {
	for range mostRead {
		rules, err := shellpolicy.New(patterns, nil)
		if err != nil {
			return patterns, err
		}
		v := rules.JudgeEarly(line, "sh")
		name, _, _ := strings.Cut(v.Command, " ")
		if v.Allowed() {
			return patterns, nil
		}
		if v.Decision != shellpolicy.Unlisted || name == "" || slices.Contains(patterns, name) {
			return patterns, errors.New(v.Reason)
		}
		patterns = append(patterns, name)
	}
	return patterns, fmt.Errorf("it has more than %d commands of the shell", mostRead)
}

// learnLine runs a line and returns its programs.
func learnLine(c *cobra.Command, w Environment, line string) ([]supervisor.Program, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return nil, err
	}
	l, err := supervisor.New(supervisor.Spec{
		Argv: []string{shell, "-c", line}, Env: os.Environ(), Dir: dir, Unconfined: true, Learn: true,
	})
	if err != nil {
		return nil, err
	}
	p, err := proc.Start(c.Context(), proc.Spec{
		Path: l.Path, Args: l.Args, Env: l.Env, Files: l.Files, Dir: dir, Stdin: w.In, Stdout: w.Err, Stderr: w.Err,
	})
	l.Started()
	if err != nil {
		l.Close()
		return nil, err
	}
	state, err := p.Wait()
	r := l.Close()
	switch {
	case err != nil:
		return nil, err
	case r.Failed != "":
		return nil, errors.New(r.Failed)
	case r.More > 0:
		return nil, fmt.Errorf("the command started more than %d programs; learn from a part of it",
			supervisor.MaxPrograms)
	case state.Code != 0 || state.Signal != "":
		fmt.Fprintf(w.Err, "[gatehouse] the command failed with exit code %d; it may need more than this list\n",
			state.Code)
	}
	for _, p := range r.Refused {
		fmt.Fprintf(w.Err, "[gatehouse] refused: %s\n", p.Verdict())
	}
	return r.Programs, nil
}

// quoteLine returns a line of sh with these words.
func quoteLine(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = word
		if word == "" ||
			strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,@%+-=") != "" {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// quoteYAML quotes a pattern that YAML would read as something else.
func quoteYAML(p string) string {
	if strings.ContainsAny(p, ":#[]{}*&!|>'\"%@`\\,?") || strings.HasPrefix(p, "-") {
		return "'" + strings.ReplaceAll(p, "'", "''") + "'"
	}
	return p
}
