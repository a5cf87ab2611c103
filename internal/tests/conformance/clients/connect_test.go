package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/conformance"
)

// firstCall limits the time from a built program to the first call of a real client.
const firstCall = 10 * time.Second

// configured are the clients that are started with only their own configuration files.
var configured = []struct {
	id  string
	run func(context.Context, conformance.Tools, string, string, *Model) (*exec.Cmd, error)
}{
	{"claude-code", configuredClaudeCode},
	{"codex", configuredCodex},
}

func configuredClaudeCode(
	ctx context.Context, tools conformance.Tools, home, folder string, model *Model,
) (*exec.Cmd, error) {
	program, err := binary(tools, "@anthropic-ai/claude-code-PLATFORM/claude")
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, home, program, "-p", "Go on.", "--model", "claude-sonnet-4-5", "--output-format", "json",
		"--allowedTools", "mcp__gatehouse")
	cmd.Dir = folder
	cmd.Env = append(cmd.Env, claudeCodeEnvironment(model)...)
	return cmd, nil
}

func configuredCodex(
	ctx context.Context, tools conformance.Tools, home, folder string, model *Model,
) (*exec.Cmd, error) {
	program, err := binary(tools, "@openai/codex-PLATFORM/vendor/*/bin/codex")
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, home, program, "exec", "--skip-git-repo-check",
		"-c", `mcp_servers.gatehouse.default_tools_approval_mode="approve"`, "Go on.")
	cmd.Dir = folder
	cmd.Env = append(cmd.Env, "MOCK_KEY=none")
	return cmd, nil
}

// The files that connect writes lead real clients to the daemon, in their own folder and in the requested context,
// and their first call succeeds. With a built program that takes three commands and at most ten seconds: gatehouse
// context, which is optional, gatehouse connect, and the client's own.
func TestConnectedClientsMakeACall(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	host := build(t)
	for _, c := range configured {
		t.Run(c.id, func(t *testing.T) {
			home, err := os.MkdirTemp("", "gh") // the path of a socket is at most about 100 bytes
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(home) })
			folder := filepath.Join(home, "project")
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			fill(t, folder)
			model := NewModel(modelSteps([]tried{{tool: "file_read", args: object{"path": "page.go"}}}))
			defer model.Close()
			if c.id == "codex" {
				writeCodexModel(t, home, model)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ours := func(args ...string) string {
				cmd := command(ctx, home, host, args...)
				cmd.Dir = folder
				cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("gatehouse %s: %v: %s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			if err := os.Mkdir(filepath.Join(home, "run"), 0o700); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ours("context", "create", "review", "--module", "file")
			ours("connect", c.id, "--context", "review", "--yes")
			t.Cleanup(func() { // the client's forwarder started it
				cmd := command(context.Background(), home, host, "daemon", "stop")
				cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("stop the daemon: %v: %s", err, out)
				}
			})
			cmd, err := c.run(ctx, tools, home, folder, model)
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.CombinedOutput()
			took := time.Since(began)
			if err != nil {
				t.Errorf("%v: %s", err, tail(out))
			}
			if given := model.Given(); len(given) != 1 || !strings.Contains(given[0], "needle") {
				t.Errorf("the model was given %q; the client said %s\nthe daemon: %s", given, tail(out),
					ours("daemon", "logs"))
			}
			for _, wrong := range model.Wrong() {
				t.Error(wrong)
			}
			if took > firstCall {
				t.Errorf("the first call took %v, want at most %v", took, firstCall)
			}
			t.Logf("three commands and the first call took %v", took.Round(time.Millisecond))
			status := ours("daemon", "status")
			if !strings.Contains(status, "The daemon runs") {
				t.Errorf("the client used another daemon than the terminal: %s", status)
			}
			ours("connect", c.id, "--remove", "--yes") // the client may have written its file meanwhile
			if list := ours("connect", c.id, "--list"); !strings.Contains(list, " not connected ") {
				t.Errorf("after --remove: %s", list)
			}
		})
	}
}

// The address of a server that connect writes also leads real clients to it. It replaces the command that was in
// the file.
func TestClientsConnectedByAddress(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	host := build(t)
	for _, c := range configured {
		t.Run(c.id, func(t *testing.T) {
			home, folder := t.TempDir(), t.TempDir()
			fill(t, folder)
			_, mcp := serve(t, host, folder)
			model := NewModel(modelSteps([]tried{{tool: "file_read", args: object{"path": "page.go"}}}))
			defer model.Close()
			if c.id == "codex" {
				writeCodexModel(t, home, model)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for _, args := range [][]string{{"-d", folder}, {"--http", mcp}} {
				cmd := command(ctx, home, host, append([]string{"connect", c.id, "--yes"}, args...)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			cmd, err := c.run(ctx, tools, home, folder, model)
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, tail(out))
			}
			if given := model.Given(); len(given) != 1 || !strings.Contains(given[0], "needle") {
				t.Errorf("the model was given %q; the client said %s", given, tail(out))
			}
		})
	}
}

// writeCodexModel writes the user's part of Codex's settings.
func writeCodexModel(t *testing.T, home string, model *Model) {
	t.Helper()
	folder := filepath.Join(home, ".codex")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(codexModel, model.URL+"/v1")
	if err := os.WriteFile(filepath.Join(folder, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
