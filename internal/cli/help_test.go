package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// Each command's help has examples, of the command itself or of those below it, and the command line accepts the
// words of each: no flag, command or number of arguments is wrong.
func TestExamplesOfTheHelp(t *testing.T) {
	env := Environment{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{},
		Getenv: func(string) string { return "" }}
	seen := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		calls := callsIn(t, c)
		own := 0
		for _, words := range calls {
			found := accepted(t, Root(env), c.CommandPath(), words)
			if found == c.CommandPath() || strings.HasPrefix(found, c.CommandPath()+" ") {
				own++
			}
		}
		if own == 0 {
			t.Errorf("%s --help has no example of it", c.CommandPath())
		}
		seen += len(calls)
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(Root(env))
	if seen < 200 {
		t.Errorf("only %d examples were found", seen)
	}
}

// callsIn returns the words of the calls of gatehouse in a command's examples.
func callsIn(t *testing.T, c *cobra.Command) (calls [][]string) {
	t.Helper()
	for line := range strings.Lines(c.Example) {
		if strings.HasPrefix(strings.TrimSpace(line), "{") {
			continue // a client's settings
		}
		file, err := syntax.NewParser().Parse(strings.NewReader(line), c.CommandPath())
		if err != nil {
			t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
			continue
		}
		syntax.Walk(file, func(n syntax.Node) bool {
			if call, is := n.(*syntax.CallExpr); is && len(call.Args) > 0 && call.Args[0].Lit() == "gatehouse" {
				words, err := expand.Fields(&expand.Config{}, call.Args[1:]...)
				if err != nil {
					t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
				}
				calls = append(calls, words)
			}
			return true
		})
	}
	return calls
}

// accepted reads words as the command line does, runs nothing, and returns the command they name.
func accepted(t *testing.T, root *cobra.Command, of string, words []string) string {
	t.Helper()
	c, rest, err := root.Find(words)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		args := c.Flags().Args()
		if c.DisableFlagParsing {
			args = rest
		}
		err = c.ValidateArgs(args)
	}
	if err == nil {
		err = c.ValidateRequiredFlags()
	}
	if err != nil && err != pflag.ErrHelp {
		t.Errorf("%s: gatehouse %s: %v", of, strings.Join(words, " "), err)
	}
	return c.CommandPath()
}
