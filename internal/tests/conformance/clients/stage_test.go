package clients

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/exec/overlay"
)

// Claude Code writes in a context that stages: it is told so, and sees its own result, and the folder has it when a
// person accepts it.
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
		[]byte("contexts:\n- name: agent\n  modules: [file]\n  stage: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	model := NewModel(modelSteps([]tried{
		{tool: "file_write", args: object{"path": "made.txt", "content": "made by an agent"}},
		{tool: "file_read", args: object{"path": "made.txt"}},
	}))
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
	if len(given) != 2 || !strings.Contains(given[0], `"staged":"in task st_`) ||
		!strings.Contains(given[1], "made by an agent") {
		t.Fatalf("the model was given %q; the client said %s\nthe daemon: %s", given, tail(out), ours("daemon", "logs"))
	}
	made := filepath.Join(folder, "made.txt")
	if _, err := os.Stat(made); err == nil {
		t.Error("the folder has the file before it was accepted")
	}
	if list := ours("review"); !strings.Contains(list, "/agent") {
		t.Errorf("gatehouse review: %s", list)
	}
	if shown := ours("review", "st_"); !strings.Contains(shown, "+made by an agent") ||
		!strings.Contains(shown, "call file_write") {
		t.Errorf("gatehouse review st_: %s", shown)
	}
	ours("review", "accept", "st_")
	if b, err := os.ReadFile(made); err != nil || string(b) != "made by an agent" {
		t.Errorf("the folder has %q, %v", b, err)
	}
}
