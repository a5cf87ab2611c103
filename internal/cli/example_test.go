package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/client"

	"mvdan.cc/sh/v3/shell"
)

// TestExamplesRunAsTheyStand checks that the printed example of a tool runs unchanged: the tool succeeds, or
// refuses because of the data it found, not because of its arguments.
func TestExamplesRunAsTheyStand(t *testing.T) {
	t.Chdir(t.TempDir())
	home := t.TempDir()
	readme := filepath.Join(".", "README.md")
	if err := os.WriteFile(readme, []byte("# read me\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"HOME":            home,
		"PATH":            os.Getenv("PATH"),
		"TMPDIR":          t.TempDir(),
		"XDG_RUNTIME_DIR": t.TempDir(),
	}
	run := func(args ...string) (code int, out, stderr string) {
		var o, e bytes.Buffer
		code = Run(
			t.Context(),
			args,
			Environment{In: strings.NewReader(""), Out: &o, Err: &e, Getenv: func(k string) string { return env[k] }},
		)
		return code, o.String(), e.String()
	}
	for _, module := range []string{"file", "dir", "lang", "process", "shell", "ml", "ws", "brain", "backup", "db", "code", "rag"} {
		view := []string{"--modules", module, "--context", "default"}
		_, out, stderr := run(append([]string{"tools", "--json"}, view...)...)
		var all []client.Tool
		if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) == 0 {
			t.Fatalf("%s: %v, %s", module, err, stderr)
		}
		for _, one := range all {
			t.Run(module+"/"+one.Name, func(t *testing.T) {
				_, out, _ := run(append([]string{"tools", one.Name}, view...)...)
				_, line, _ := strings.Cut(out, "Example:\n")
				words, err := shell.Fields(line, nil)
				if err != nil || len(words) < 3 || words[0] != "gatehouse" {
					t.Fatalf("%q: %v", line, err)
				}
				code, out, stderr := run(words[1:]...)
				said := out + stderr
				if code != exitOK && code != exitFailed || strings.Contains(said, "invalid_arguments") {
					t.Errorf("%s: exit code %d, %s", strings.TrimSpace(line), code, said)
				}
				if code == exitFailed &&
					slices.Contains([]string{"file_read", "file_search", "file_stat", "file_exists", "dir_list",
						"dir_size", "lang_detect", "lang_list", "process_run", "process_list", "shell_run"}, one.Name) {
					t.Errorf("%s: %s", strings.TrimSpace(line), said)
				}
			})
		}
	}
	if text, err := os.ReadFile(readme); string(text) != "# read me\n" {
		t.Errorf("an example changed a file that was there: %q, %v", text, err)
	}
}

func TestExamplesHaveOptionalArgumentsWithAnExample(t *testing.T) {
	one := client.Tool{Name: "t", Input: schemaOf(t, `{"type":"object","required":["x"],"properties":{
		"x":{"type":"string"},"path":{"type":"string","examples":["/mnt"]},"y":{"type":"string"}}}`)}
	if got, want := exampleOf(one, nil), "gatehouse call t x=X path=/mnt"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSamplesFitTheirSchemas(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"string","enum":["b","a"]}`:                                       "x=b",
		`{"type":"string","const":"c"}`:                                            "x=c",
		`{"type":"string","examples":["e"]}`:                                       "x=e",
		`{"type":"string","pattern":"^[a-z]+$"}`:                                   "x=x",
		`{"type":"string","pattern":"^@[a-z]+$"}`:                                  "x=@example",
		`{"type":"string","format":"email"}`:                                       "x=user@example.com",
		`{"type":"string","minLength":4}`:                                          "x=example",
		`{"type":"string","minLength":30}`:                                         "x=X" + strings.Repeat("x", 29),
		`{"type":"integer","minimum":5}`:                                           "x=5",
		`{"type":"integer","maximum":-3}`:                                          "x=-3",
		`{"type":"integer","exclusiveMinimum":7}`:                                  "x=8",
		`{"type":"integer","multipleOf":8,"minimum":9}`:                            "x=16",
		`{"type":"array","items":{"type":"integer"},"minItems":2}`:                 "'x=[1,1]'",
		`{"type":"array"}`:                                                         "'x=[]'",
		`{"type":"object","required":["a"],"properties":{"a":{"type":"boolean"}}}`: `'x={"a":true}'`,
		`{"type":["null","number"],"minimum":2}`:                                   "x=null",
		`{"anyOf":[{"type":"integer"},{"type":"string"}]}`:                         "x=1",
		`{"type":"string","minLength":"many","pattern":"("}`:                       "x=X",
	} {
		one := client.Tool{
			Name:  "t",
			Input: schemaOf(t, `{"type":"object","required":["x"],"properties":{"x":`+schema+`}}`),
		}
		if got := exampleOf(one, nil); got != "gatehouse call t "+want {
			t.Errorf("%s: got %s, want %s", schema, got, want)
		}
	}
}
