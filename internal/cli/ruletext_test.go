package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRulesThatCompareTextAreWarnedOf checks that rules that compare a path or a command as text cause a warning
// when they are written, checked and evaluated, and are accepted nevertheless.
func TestRulesThatCompareTextAreWarnedOf(t *testing.T) {
	run := home(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	text := write(
		"text.yaml",
		"rules:\n  - name: private\n    when: args.path.startsWith(\"private/\")\n    then: refuse\n"+
			"  - name: rm\n    when: args.command.matches(\"^rm\")\n    then: refuse\n",
	)
	resolved := write(
		"resolved.yaml",
		"rules:\n  - when: op.paths.exists(p, p.startsWith(\"/private/\")) || op.commands.exists(c, "+
			"c.name == \"rm\")\n    then: refuse\n"+
			"  - when: args.limit > 5 || has(args.path)\n    then: refuse\n",
	)
	own := write("own.json", `{"rules":[{"name":"mine","when":"args.path == \"private\"","then":"refuse"}]}`)
	path := "private compares args.path as text, which other spellings pass; compare op.paths, which the host resolves"
	command := "rm compares args.command as text, which other spellings pass; compare op.commands, " +
		"which the host resolves"
	for _, step := range []struct {
		line string
		want []string
	}{
		{"config check " + text, []string{path, command}},
		{"config check " + resolved, nil},
		{"context create one --from " + own, []string{"one: mine compares args.path as text"}},
		{"context update one --from " + own, []string{"one: mine compares args.path as text"}},
		{"context create two --tool file_*", nil},
		{"context check one --tool file_read", []string{"one: mine compares args.path as text"}},
	} {
		code, out, said := run("", strings.Fields(step.line)...)
		if code != 0 {
			t.Errorf("%s: exit %d, out %q, said %q", step.line, code, out, said)
		}
		for _, want := range step.want {
			if strings.Count(said, want) != 1 {
				t.Errorf("%s: said %q, want %q in it once", step.line, said, want)
			}
		}
		if step.want == nil && strings.Contains(said, "as text") {
			t.Errorf("%s: said %q", step.line, said)
		}
	}
}
