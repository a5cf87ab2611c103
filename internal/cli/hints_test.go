package cli

import (
	"bytes"
	"go/scanner"
	gotoken "go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gatehouse/internal/mcp/client"

	"github.com/spf13/cobra"
)

// TestAToolOfAnotherModuleIsFound checks that an unknown name is compared with the tools of other modules, and
// that the error names how to offer such a tool.
func TestAToolOfAnotherModuleIsFound(t *testing.T) {
	env := map[string]string{"HOME": t.TempDir(), "PATH": os.Getenv("PATH"), "XDG_RUNTIME_DIR": t.TempDir()}
	w := Environment{
		In:     strings.NewReader(""),
		Out:    new(bytes.Buffer),
		Err:    new(bytes.Buffer),
		Getenv: func(k string) string { return env[k] },
	}
	here := []client.Tool{{Name: "dir_list"}, {Name: "job_list"}}
	for _, c := range []struct {
		name, want, wantRunning string
	}{
		{"fil_raed", "did you mean file_read, of the module file? It is not shown here: --modules file",
			"did you mean file_read, of the module file? It is not shown here: the server must be started with that " +
				"module, as by gatehouse serve file"},
		{"proces_list", "process_list, of the module process? It is not shown here: --modules process",
			"as by gatehouse serve process"},
		{"shel_run", "shell_run, of the module shell? It is not shown here: --modules file,shell",
			"as by gatehouse serve file shell"},
		{"file_read", "it may exist if you name the module it begins with: --modules file",
			"as by gatehouse serve file"},
		{"dir_lst", "did you mean dir_list?", "did you mean dir_list?"},
		{"utter_nonsense_of_mine", `"gatehouse tools" lists the tools`, `"gatehouse tools" lists the tools`},
	} {
		for where, one := range map[*target]string{new(target): c.want, {url: "http://127.0.0.1:1"}: c.wantRunning} {
			_, err := where.findTool(t.Context(), w, here, c.name)
			if err == nil || !strings.Contains(err.Error(), one) ||
				where.running() && strings.Contains(err.Error(), "--modules") {
				t.Errorf("%s, running %v: got %v, want %q", c.name, where.running(), err, one)
			}
		}
	}
}

// TestFlagsThatTextsNameExist checks that a flag named in a text of this program exists for the command that the
// text names, or whose help it is.
func TestFlagsThatTextsNameExist(t *testing.T) {
	root := Root(
		Environment{
			In:     strings.NewReader(""),
			Out:    new(bytes.Buffer),
			Err:    new(bytes.Buffer),
			Getenv: func(string) string { return "" },
		},
	)
	root.InitDefaultHelpFlag()
	has := func(c *cobra.Command, name string) bool {
		c.InitDefaultHelpFlag()
		return c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil || name == "help" ||
			name == "version"
	}
	found := 0
	check := func(where, text string) {
		for line := range strings.Lines(text) {
			for rest := line; ; {
				_, after, ok := strings.Cut(rest, "gatehouse ")
				if !ok {
					break
				}
				rest = after
				words := strings.Fields(commandLine(after))
				c, _, err := root.Find(words)
				if err != nil || c == root {
					continue
				}
				for _, word := range words {
					name, isFlag := strings.CutPrefix(word, "--")
					if name, _, _ = strings.Cut(name, "="); !isFlag || name == "" {
						continue
					}
					found++
					if !has(c, strings.TrimRight(name, ".:?'\"`")) {
						t.Errorf("%s: %q: gatehouse %s has no --%s", where, strings.TrimSpace(line), c.Name(), name)
					}
				}
			}
		}
	}
	for _, dir := range []string{"../../internal", "../../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files := gotoken.NewFileSet()
			var s scanner.Scanner
			s.Init(files.AddFile(path, -1, len(text)), text, nil, 0)
			for {
				_, tok, lit := s.Scan()
				if tok == gotoken.EOF {
					return nil
				}
				if tok == gotoken.STRING {
					if said, err := strconv.Unquote(lit); err == nil {
						check(path, said)
					}
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 50 {
		t.Errorf("only %d flags were found in texts", found)
	}
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		// The usage texts of flags name other flags of the same command: "needs --http".
		for word := range strings.FieldsSeq(c.LocalFlags().FlagUsages()) {
			if name, isFlag := strings.CutPrefix(strings.Trim(word, "().,;:"), "--"); isFlag && !has(c, name) {
				t.Errorf("%s: a flag is explained by --%s, which the command has not", c.CommandPath(), name)
			}
		}
		for _, sub := range c.Commands() {
			each(sub)
		}
	}
	each(root)
}

// commandLine returns the part of a text that is a command line: up to the end of the sentence, the quotes, or the
// next command.
func commandLine(s string) string {
	for _, end := range []string{"; ", ", ", ". ", ") ", " # ", " | ", " && ", "gatehouse ", "`", "\"", ")", "\n",
		" or --", " and --"} {
		s, _, _ = strings.Cut(s, end)
	}
	return s
}
