package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/tests/editors"
)

// Claude Code at a terminal finds the lock file of ide_editor_serve and connects to the host as its
// editor. Its model is given the selection and what the host's language server reports; a change
// that it wants to make waits for the decision of ide_diff_decide, and the text that is accepted
// there is written. An agent with another home, which does not find the secret, does not connect.
func TestClaudeCodeHasTheHostAsItsEditor(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	program, err := binary(tools, "@anthropic-ai/claude-code-PLATFORM/claude")
	if err != nil {
		t.Fatal(err)
	}
	gopls := filepath.Join(filepath.Dir(tools.Dir), "editors", "gopls")
	if _, err := os.Stat(gopls); err != nil {
		t.Skip(err)
	}
	home, folder := t.TempDir(), t.TempDir()
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.mod": "module a\n\ngo 1.24\n",
		"a.go": "package a\n\nfunc F() int { return word }\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	host := localHost(t, home, folder, "GATEHOUSE_MODULES_LSP_SERVERS=go="+gopls)
	var served struct {
		Port int
		Lock string
	}
	host.call("ide_editor_serve", `{}`, &served)
	if want := filepath.Join(home, ".claude", "ide", strconv.Itoa(served.Port)+".lock"); served.Lock != want {
		t.Fatalf("the lock file is %s, want %s", served.Lock, want)
	}
	model := NewModel([]Step{
		{
			"getDiagnostics",
			func([]string) map[string]any { return map[string]any{"uri": "file://" + filepath.Join(folder, "a.go")} },
		},
		{"Write", func([]string) map[string]any {
			return map[string]any{"file_path": filepath.Join(folder, "new.txt"), "content": "proposed\n"}
		}},
	})
	defer model.Close()
	type state struct {
		Agents int
		Diffs  []struct{ ID, Path, Status string }
	}
	var now state
	until := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s did not happen within a minute: %+v, wrong %v, given %v", what, now, model.Wrong(),
					model.Given())
			}
			now = state{}
			host.call("ide_editor_state", `{}`, &now)
		}
	}
	stranger := atTerminal(t, program, t.TempDir(), folder, model)
	agent := atTerminal(t, program, home, folder, model)
	until("a connection", func() bool { return now.Agents > 0 })
	stranger.wait("for shortcuts")
	host.call("ide_editor_state", `{}`, &now)
	if now.Agents != 1 {
		t.Errorf("%d agents are connected, want 1", now.Agents)
	}
	stranger.end()
	host.call(
		"ide_editor_update",
		`{"selection":{"path":"a.go","from":3,"to":3,"text":"func F() int { return word }"}}`,
		&now,
	)
	agent.wait("1 line selected")
	agent.say("Go on.")
	until("a change", func() bool { return len(now.Diffs) > 0 })
	if d := now.Diffs[0]; d.Path != filepath.Join(folder, "new.txt") || d.Status != "pending" {
		t.Errorf("the change is %+v", d)
	}
	var decided struct{ Status string }
	host.call("ide_diff_decide", `{"id":"`+now.Diffs[0].ID+`","accept":true,"text":"accepted\n"}`, &decided)
	until("the result of the change", func() bool { return len(model.Given()) == 2 })
	if given := model.Given(); !strings.Contains(given[0], "undefined: word") ||
		!strings.Contains(given[0], `"severity":"Error"`) {
		t.Errorf("the model was given %q", given)
	}
	if b, err := os.ReadFile(filepath.Join(folder, "new.txt")); err != nil || string(b) != "accepted\n" {
		t.Errorf("the file has %q, %v", b, err)
	}
	agent.end()
	until("the end of the connection", func() bool { return now.Agents == 0 })
}

// typed is a client at a terminal.
type typed struct {
	t    *testing.T
	cmd  *exec.Cmd
	file *os.File
	mu   sync.Mutex
	out  []byte
	done chan struct{}
}

// atTerminal starts Claude Code in a folder that it has been told to trust.
func atTerminal(t *testing.T, program, home, folder string, model *Model) *typed {
	t.Helper()
	known, err := json.Marshal(map[string]any{
		"hasCompletedOnboarding": true, "lastOnboardingVersion": "99.0.0", "theme": "dark",
		"customApiKeyResponses": map[string]any{"approved": []string{"none"}, "rejected": []string{}},
		"projects": map[string]any{
			folder: map[string]bool{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".claude.json"), known, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t.Context(), home, program, "--ide", "--model", "claude-sonnet-4-5", "--allowedTools",
		"mcp__ide__getDiagnostics")
	cmd.Dir = folder
	cmd.Env = append(append(cmd.Env, "TERM=xterm-256color"), claudeCodeEnvironment(model)...)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 150})
	if err != nil {
		t.Fatal(err)
	}
	p := &typed{t: t, cmd: cmd, file: file, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		b := make([]byte, 32<<10)
		for {
			n, err := file.Read(b)
			p.mu.Lock()
			p.out = append(p.out, b[:n]...)
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(p.end)
	return p
}

var control = regexp.MustCompile("\x1b\\[[0-9;?<>=]*[a-zA-Z]|\x1b\\][^\x07]*\x07|\x1b[()][A-Z0-9]|[ \r\n]")

// wait waits until the screen has shown a text, whose blanks do not count because they are drawn by moves.
func (p *typed) wait(text string) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		p.mu.Lock()
		seen := control.ReplaceAllString(string(p.out), "")
		p.mu.Unlock()
		if strings.Contains(seen, strings.ReplaceAll(text, " ", "")) {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("the screen did not show %q: %s", text, tail([]byte(seen)))
		}
	}
}

// say types a line. The end of the line is typed when the screen has shown the words, since what comes at once is taken
// as pasted.
func (p *typed) say(words string) {
	p.t.Helper()
	if _, err := p.file.WriteString(words); err != nil {
		p.t.Fatal(err)
	}
	p.wait(words)
	if _, err := p.file.WriteString("\r"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *typed) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	force := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer force.Stop()
	_ = p.cmd.Wait()
	p.file.Close()
	<-p.done
}

// An editor on the official SDK reaches an agent through gatehouse acp: answers, plans and
// permissions pass both ways, and the agent is given this host as an MCP server beside the editor's
// own.
func TestAnEditorReachesAnAgentThroughTheHost(t *testing.T) {
	tools := editors.Open(t)
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/editor.mjs")
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "editor.mjs"), script, 0o600)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(tools.Dir, "node_modules"), filepath.Join(folder, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	bin := build(t)
	cmd := command(t.Context(), folder, tools.Node, "editor.mjs", bin, "acp", "--agent", "fixture")
	cmd.Env = append(cmd.Env, "GATEHOUSE_MODULES_IDE_AGENTS="+tools.Agent())
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	var got struct {
		Hello   struct{ ProtocolVersion int }
		Answers map[string]struct{ Text, StopReason string }
		Loaded  string
		Plan    int
		Asked   string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if a := got.Answers["hello"]; a.Text != "you said hello" || a.StopReason != "end_turn" ||
		got.Hello.ProtocolVersion != 1 {
		t.Errorf("got %+v", got)
	}
	if got.Plan != 2 || got.Asked != "delete a.txt" || !strings.Contains(got.Answers["ask"].Text, `"optionId":"y"`) {
		t.Errorf("got %+v", got)
	}
	own := `{"name":"gatehouse","command":"` + bin + `","args":["-d","` + folder + `"],"env":[]}`
	if text := got.Answers["mcp"].Text; !strings.Contains(text, `{"name":"other",`) || !strings.Contains(text, own) {
		t.Errorf("the servers of a new session are %s", text)
	}
	if !strings.HasSuffix(got.Loaded, "["+own+"]") {
		t.Errorf("the servers of a loaded session are %s", got.Loaded)
	}
}

// local is a host whose caller is the user of the operating system.
type local struct {
	t  *testing.T
	cl *client.Client
}

// localHost starts a host with the modules of editors, whose socket makes its callers administrators.
func localHost(t *testing.T, home, folder string, environment ...string) *local {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(build(t), "serve", "file", "ide", "lsp", "--unix", socket, "-d", folder)
	cmd.Dir = home
	cmd.Env = append([]string{
		"PATH=" + os.Getenv(
			"PATH",
		), "HOME=" + home, "TMPDIR=" + home, "GOCACHE=" + filepath.Join(home, "cache"), "GOFLAGS=-mod=mod",
	}, environment...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		force := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer force.Stop()
		if err := cmd.Wait(); err != nil {
			said, _ := os.ReadFile(log.Name())
			t.Errorf("the host ended badly: %v: %s", err, tail(said))
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		cl, err := client.DialUnix(t.Context(), socket, client.Options{Name: "test", Version: "1"})
		if err == nil {
			t.Cleanup(func() { cl.Close() })
			return &local{t, cl}
		}
		if time.Now().After(end) {
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("%v: %s", err, said)
		}
	}
}

// call calls a tool and decodes its structured result.
func (l *local) call(name, args string, into any) {
	l.t.Helper()
	all, err := l.cl.Tools(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	for _, x := range all {
		if x.Name != name {
			continue
		}
		res, err := l.cl.Call(l.t.Context(), x, json.RawMessage(args))
		if err != nil || res.IsError {
			l.t.Fatalf("%s: %v %+v", name, err, res)
		}
		if err := json.Unmarshal(res.Structured, into); err != nil {
			l.t.Fatal(err)
		}
		return
	}
	l.t.Fatalf("there is no tool %s", name)
}
