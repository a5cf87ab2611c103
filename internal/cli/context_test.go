package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/dispatch/contextstore"
)

func TestContextsFromTheCommandLine(t *testing.T) {
	run := home(t)
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "ci.json")
	if err := os.WriteFile(file,
		[]byte(`{"description":"Builds. Really.","own_prompts":[{"name":"p","template":"hi"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		in, line string
		code     int
		out      string // a pattern
		said     string // likewise
	}{
		{"", "context list", 0, `^$`, `no contexts; create one`},
		{"", "context delete notes", 1, `^$`, `context notes: no such context`},
		{"", "context create notes -d " + dir + " --tool file_*,!file_delete --env A=b=c --env B=", 0, `^$`,
			`^\[gatehouse\] Created context notes\n$`},
		{"", "context create notes", 1, `^$`, `context notes: a context of that name exists`},
		{"", "context create Notes", 2, `^$`, `name: "Notes": expected`},
		{"", "context create admin", 1, `^$`, `fixed and cannot be changed`},
		{"", "context create default", 1, `^$`, `fixed and cannot be changed`},
		{"", "context create file", 1, `^$`, `fixed and cannot be changed`},
		{"", "context create x -d " + dir + "/none", 2, `^$`, `the folder does not exist`},
		{"", "context create x --env A", 2, `^$`, `--env A: expected NAME=value`},
		{"", "context create x --module attic", 2, `^$`, `there is no module "attic"; expected some of file`},
		{"", "context create x --tool [", 2, `^$`, `tools: "\[" is not a pattern`},
		{"", "context create x --from /none", 2, `^$`, `no such file`},
		{"{", "context create x --from -", 2, `^$`, `expected a JSON object`},
		{`{"tool":[]}`, "context create x --from -", 2, `^$`, `unknown field "tool"`},
		{"", "context create", 2, `^$`, `requires NAME, got 0`},
		{"", "context create ci --module none --role ci,dev --from " + file, 0, `^$`, `Created`},
		{"", "context list", 0, `(?m)^ci +ci,dev +- +1 .*Builds\.\nnotes +everyone +default +0 .* -$`, `^$`},
		{"", "context show notes", 0, `"env": \{\n +"A": "b=c",\n +"B": ""`, `^$`},
		{"", "context show none", 1, `^$`, `no such context`},
		{"", "context show default", 1, `^$`, `no definition; gatehouse context check default says`},
		{"", "context create x --burst 5", 2, `^$`, `limits: burst has an effect only with a rate`},
		{"", "context create x --calls -1", 2, `^$`, `limits: calls is -1; expected a number from 0`},
		{"", "context update notes --calls 4 --rate 2.5", 0, `^$`, `Changed`},
		{"", "context update notes --tool dir_list --role a --burst 9", 0, `^$`, `Changed`},
		{`{"env":null}`, "context update notes --role= --from -", 0, `^$`, `Changed`},
		{"", "context update none", 1, `^$`, `no such context`},
		{"", "context lsit", 2, `^$`, `did you mean list`},
	} {
		code, out, said := run(step.in, strings.Fields(step.line)...)
		if code != step.code || !regexp.MustCompile(step.out).MatchString(out) ||
			!regexp.MustCompile(step.said).MatchString(said) {
			t.Errorf("%s: exit %d, out %q, said %q", step.line, code, out, said)
		}
	}
	_, out, _ := run("", "context", "show", "notes")
	var got struct {
		Tools, Roles []string
		Env          map[string]string
		Roots        []struct{ Path string }
		Limits       contextstore.Limits
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Tools) != 1 || len(got.Roles) != 0 ||
		got.Env != nil ||
		got.Roots[0].Path != dir ||
		got.Limits != (contextstore.Limits{Calls: 4, Rate: 2.5, Burst: 9}) {
		t.Errorf("after the updates: %s", out)
	}
	if code, _, said := run(out, "context", "update", "ci", "--from", "-"); code != 0 {
		t.Errorf("what was shown cannot be read: %s", said)
	}
	if code, _, said := run("", "context", "delete", "notes", "ci"); code != 0 ||
		strings.Count(said, "Removed") != 2 {
		t.Errorf("exit %d, said %q", code, said)
	}
}

// TestContextsOfTheSettings checks that contexts of the settings are listed and shown beside the stored ones, that
// their names cannot be used again, and that context check prints what decides.
func TestContextsOfTheSettings(t *testing.T) {
	folder := t.TempDir()
	env := map[string]string{"GATEHOUSE_DATA_DIR": t.TempDir(), "GATEHOUSE_CONFIG_DIR": folder, "HOME": t.TempDir()}
	if err := os.WriteFile(filepath.Join(folder, "gatehouse.yaml"), []byte(`
contexts:
  - {name: one, modules: [file], description: First.}
  - {name: two, modules: [file], roles: [dev], known_to: [guest]}
rules:
  - {name: no deletes, names: [file_delete], then: refuse, reason: it is for good}
  - {name: look first, names: [file_write], when: args.content == "x", then: ask}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		line string
		code int
		out  string // a pattern
		said string // likewise
	}{
		{"context create two", 1, `^$`, `context two: .*the settings define it`},
		{"context create three --module process", 0, `^$`,
			`Created context three\n.*does not serve process(?s:.*)gatehouse serve process`},
		{"context list", 0, `(?m)^one +everyone +file +0 +settings +First\.?\ntwo +dev +file +0 +settings +-\nthree +everyone +process`, `^$`},
		{"context show two", 0, `"roles": \[\n +"dev"`, `^$`},
		{"context check one --user eve --tool file_read", 0,
			`"verdict": "allow",\n +"rule": "default",\n +"listed": true`, `^$`},
		{"context check one --user eve --tool file_delete", 0,
			`"verdict": "refuse",\n +"rule": "no deletes",\n +"reason": "it is for good",\n +"listed": false`, `^$`},
		{"context check one --tool file_write --args {\"content\":\"x\"}", 0,
			`"verdict": "ask[a-z-]*",\n +"rule": "look first"`, `^$`},
		{"context check two --role dev --tool file_read", 0, `"verdict": "allow"(?s:.*)"roles": \[\n +"dev"`, `^$`},
		{"context check two --tool file_read", 0,
			`"verdict": "refuse",\n +"rule": "roles and users of the context two",\n +"reason": "Context not found"`,
			`^$`},
		{"context check two --role guest --tool file_read", 0, `"reason": "Context not allowed"`, `^$`},
		{"context check one --tool dir_list", 0, `"verdict": "absent"`, `^$`},
		{"context check one --resource gatehouse:///public", 0, `"verdict": "allow"`, `^$`},
		{"context check one", 2, `^$`, `expected one of tool, resource and prompt, got 0`},
		{"context check none --tool x", 2, `^$`, `there is no context none`},
	} {
		var out, said strings.Builder
		code := Run(
			t.Context(),
			strings.Fields(step.line),
			Environment{
				In:     strings.NewReader(""),
				Out:    &out,
				Err:    &said,
				Getenv: func(name string) string { return env[name] },
			},
		)
		if code != step.code || !regexp.MustCompile(step.out).MatchString(out.String()) ||
			!regexp.MustCompile(step.said).MatchString(said.String()) {
			t.Errorf(
				"%s: exit code %d, out %s, said %s; want %d, %s, %s",
				step.line,
				code,
				out.String(),
				said.String(),
				step.code,
				step.out,
				step.said,
			)
		}
	}
}
