package clients

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/exec/overlay"
)

// Claude Code writes by a file tool, a shell and a package in a context that stages: its model is told so of each call,
// each sees what the others have changed, and the folder has it when a person accepts it.
func TestClaudeCodeIsStaged(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	if err := overlay.Probe(filepath.Join(t.TempDir(), "probe"), false); err != nil {
		t.Skip(err)
	}
	host := build(t)
	home, err := os.MkdirTemp("", "gh") // the path of a socket is at most about 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	folder := filepath.Join(home, "project")
	settings := filepath.Join(home, ".config", "gatehouse")
	for _, dir := range []string{folder, settings, filepath.Join(home, "run")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(settings, "gatehouse.yaml"),
		[]byte("contexts:\n- name: agent\n  modules: [file, shell, package]\n  stage: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const told = `staged\W+in task st_`
	steps := []tried{
		{tool: "file_write", args: object{"path": "made.txt", "content": "made by an agent"}, facts: []string{told}},
		{tool: "file_read", args: object{"path": "made.txt"}, facts: []string{"made by an agent"}},
		{
			tool: "shell_run", args: object{"command": "cat made.txt; echo by a shell >shell.txt"},
			facts: []string{"made by an agent", told},
		},
		{
			tool:  "notes_file_write",
			args:  object{"path": filepath.Join(folder, "note.txt"), "content": "by a package"},
			facts: []string{told},
		},
		{
			tool: "notes_file_read", args: object{"path": filepath.Join(folder, "shell.txt")},
			facts: []string{"by a shell"},
		},
		{tool: "shell_run", args: object{"command": "cat note.txt"}, facts: []string{"by a package"}},
	}
	model := NewModel(modelSteps(steps))
	defer model.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ours := func(args ...string) string {
		t.Helper()
		cmd := command(ctx, home, host, args...)
		cmd.Dir = folder
		cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("gatehouse %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	ours("package", "add", "notes", "--yes", "--allow-folder", folder, "--", host, "serve", "-d", folder)
	ours("connect", "claude-code", "--context", "agent", "--yes")
	t.Cleanup(func() { // the client's forwarder started it
		cmd := command(context.Background(), home, host, "daemon", "stop")
		cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("stop the daemon: %v: %s", err, out)
		}
	})
	cmd, err := configuredClaudeCode(ctx, tools, home, folder, model)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, tail(out))
	}
	for _, wrong := range model.Wrong() {
		t.Error(wrong)
	}
	given := model.Given()
	if len(given) != len(steps) {
		t.Fatalf("the model was given %q; the client said %s\nthe daemon: %s", given, tail(out), ours("daemon", "logs"))
	}
	for i, step := range steps {
		for _, fact := range step.facts {
			if !regexp.MustCompile(fact).MatchString(plain(given[i])) {
				t.Errorf("%s: the model is not told %s: %s", step.tool, fact, given[i])
			}
		}
	}
	want := map[string]string{"made.txt": "made by an agent", "shell.txt": "by a shell\n", "note.txt": "by a package"}
	for name := range want {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			t.Errorf("the folder has %s before it was accepted", name)
		}
	}
	if list := ours("review"); !strings.Contains(list, "/agent") {
		t.Errorf("gatehouse review: %s", list)
	}
	if shown := ours("review", "st_"); !strings.Contains(shown, "+made by an agent") ||
		!strings.Contains(shown, "call file_write") || !strings.Contains(shown, "notes_file_write") {
		t.Errorf("gatehouse review st_: %s", shown)
	}
	if accepted := ours("review", "accept", "st_"); strings.Contains(accepted, "still run") { // the package is idle
		t.Errorf("gatehouse review accept st_: %s", accepted)
	}
	for name, content := range want {
		if b, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(b) != content {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
}
