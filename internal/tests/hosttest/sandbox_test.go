package hosttest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
)

// needSandboxes skips a test on a machine that cannot have them, with what is
// missing.
func needSandboxes(t testing.TB) {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
}

// sandboxedHost is a host with sandboxes at a door, which knows ann and bob.
type sandboxedHost struct {
	t      *testing.T
	app    *app.App
	url    string
	tokens map[string]string
}

func sandboxHost(t *testing.T, change func(*config.Config)) *sandboxedHost {
	t.Helper()
	cfg := gateSettings(t)
	cfg.Contexts = nil
	cfg.View.Modules = []string{"file", "sandbox"}
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	cfg.Auth.Required = true
	cfg.Modules.Sandbox.Pool.Enabled = false
	if change != nil {
		change(&cfg)
	}
	a, err := app.New(
		t.Context(),
		cfg,
		app.Options{Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	h := &sandboxedHost{t: t, app: a, url: a.Listeners()[0].Address, tokens: map[string]string{}}
	users, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { users.Close() })
	for _, name := range []string{"ann", "bob"} {
		if err := users.AddUser(t.Context(), name, nil, "a long enough password"); err != nil {
			t.Fatal(err)
		}
		if h.tokens[name], _, err = users.CreateToken(t.Context(), identity.Token{User: name}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// coder is a client that calls tools over HTTP, in one context.
type coder struct {
	h       *sandboxedHost
	who, in string
	session string
	ids     atomic.Int32
}

// enter begins a session.
func (h *sandboxedHost) enter(who, in string) *coder {
	h.t.Helper()
	c := &coder{h: h, who: who, in: in}
	c.send(
		"initialize",
		`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`,
		nil,
	)
	return c
}

// send sends a request and gives its answer; what comes before goes to note.
func (c *coder) send(method, params string, note func(json.RawMessage)) json.RawMessage {
	c.h.t.Helper()
	answer, err := c.post(method, params, note)
	if err != nil {
		c.h.t.Fatal(err)
	}
	return answer
}

// post is send for any goroutine.
func (c *coder) post(method, params string, note func(json.RawMessage)) (json.RawMessage, error) {
	id := c.ids.Add(1)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
	if strings.HasPrefix(method, "notifications/") {
		body = fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
	}
	r, err := http.NewRequestWithContext(c.h.t.Context(), "POST", c.h.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Authorization": "Bearer " + c.h.tokens[c.who],
		"X-MCP-Context": c.in, "Mcp-Session-Id": c.session,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	if c.session != "" {
		r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if c.session == "" {
		c.session = res.Header.Get("Mcp-Session-Id")
	}
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadBytes('\n')
		line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("data: "))
		if bytes.HasPrefix(line, []byte("{")) {
			var m struct {
				ID     int32
				Method string
			}
			if json.Unmarshal(line, &m) == nil && m.ID == id && m.Method == "" {
				return line, nil
			}
			if note != nil {
				note(line)
			}
		}
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// answer is what a tool gave.
type answer struct {
	IsError           bool
	Content           []struct{ Type, Text, MimeType, Data string }
	StructuredContent map[string]any
}

func (a answer) text() string {
	if len(a.Content) == 0 {
		return ""
	}
	return a.Content[0].Text
}

func (a answer) id(name string) string {
	s, _ := a.StructuredContent[name].(string)
	return s
}

// call calls a tool; arguments are names and values in turn.
func (c *coder) call(name string, pairs ...any) answer {
	c.h.t.Helper()
	return c.callNoting(nil, name, pairs...)
}

func (c *coder) callNoting(note func(json.RawMessage), name string, pairs ...any) answer {
	c.h.t.Helper()
	in := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		in[pairs[i].(string)] = pairs[i+1]
	}
	p := map[string]any{"name": name, "arguments": in}
	if note != nil {
		p["_meta"] = map[string]any{"progressToken": "p"}
	}
	b, _ := json.Marshal(p)
	var m struct {
		Result answer
		Error  *struct{ Message string }
	}
	raw := c.send("tools/call", string(b), note)
	if err := json.Unmarshal(raw, &m); err != nil || m.Error != nil {
		c.h.t.Fatalf("%s: %s", name, raw)
	}
	return m.Result
}

func (c *coder) tools() (names []string) {
	c.h.t.Helper()
	var m struct {
		Result struct{ Tools []struct{ Name string } }
	}
	json.Unmarshal(c.send("tools/list", "{}", nil), &m)
	for _, t := range m.Result.Tools {
		names = append(names, t.Name)
	}
	return names
}

// The preset stands for the original: its eight tools by their names, with its
// arguments, results and texts.
func TestThePresetSandboxOverHTTP(t *testing.T) {
	needSandboxes(t)
	h := sandboxHost(t, nil)
	c := h.enter("ann", "sandbox")
	for _, name := range []string{"create_sandbox", "destroy_sandbox", "list_sandboxes", "execute_code", "run_command",
		"read_file", "write_file", "list_directory"} {
		if !slices.Contains(c.tools(), name) {
			t.Errorf("%s is missing in %v", name, c.tools())
		}
	}
	made := c.call("create_sandbox", "memory_mib", 128, "vcpu_count", 1)
	id := made.id("sandbox_id")
	if want := "{\n  \"sandbox_id\": \"" + id + "\"\n}"; id == "" || made.text() != want {
		t.Fatalf("%+v", made)
	}
	for _, x := range []struct {
		tool string
		args []any
		want string
	}{
		{"write_file", []any{"path", "/home/user/dir/hello.sh", "content", "echo hello $1\n"}, `{"success":true}`},
		{"read_file", []any{"path", "/home/user/dir/hello.sh"}, `{"content":"echo hello $1\n"}`},
		{"list_directory", []any{"path", "/home/user/dir"},
			`{"entries":[{"name":"hello.sh","is_dir":false,"size":14}]}`},
		{"run_command", []any{"command", "sh dir/hello.sh you; exit 3"},
			`{"exit_code":3,"stdout":"hello you\n","stderr":""}`},
		{"execute_code", []any{"language", "bash", "code", "echo out; echo err >&2"},
			`{"exit_code":0,"stdout":"out\n","stderr":"err\n"}`},
		{"destroy_sandbox", nil, `{"success":true}`},
	} {
		got := c.call(x.tool, append([]any{"sandbox_id", id}, x.args...)...)
		var flat bytes.Buffer
		if err := json.Compact(&flat, []byte(got.text())); err != nil || got.IsError || flat.String() != x.want ||
			len(got.Content) != 1 {
			t.Errorf("%s: %+v, want %s", x.tool, got, x.want)
		}
	}
	for _, unknown := range []string{id, "not-an-id", "00000000-0000-0000-0000-000000000000"} {
		if got := c.call("run_command", "sandbox_id", unknown, "command", "true"); !got.IsError ||
			got.text() != "Sandbox not found or invalid ID" {
			t.Errorf("%s: %+v", unknown, got)
		}
	}
}

// In other contexts the tools have names of their own, and a sandbox belongs to
// the principal and the context that made it.
func TestSandboxesBelongToPrincipalAndContext(t *testing.T) {
	needSandboxes(t)
	h := sandboxHost(t, nil)
	ann := h.enter("ann", "")
	if names := ann.tools(); !slices.Contains(names, "sandbox_run") || !slices.Contains(names, "file_read") ||
		slices.Contains(names, "execute_code") {
		t.Errorf("%v", names)
	}
	id := ann.call("sandbox_create").id("sandbox_id")
	if got := ann.call("sandbox_exec", "sandbox_id", id, "command", "echo mine >f; cat f"); got.text() != "mine\n" ||
		got.StructuredContent != nil {
		t.Errorf("%+v", got)
	}
	if got := h.enter("ann", "").call("sandbox_exec", "sandbox_id", id, "command", "cat f"); got.text() != "mine\n" {
		t.Errorf("the same person in another session: %+v", got)
	}
	for name, other := range map[string]*coder{"another person": h.enter("bob", ""),
		"another context": h.enter("ann", "sandbox")} {
		run := map[string]string{"": "sandbox_exec", "sandbox": "run_command"}[other.in]
		if got := other.call(run, "sandbox_id", id, "command", "cat f"); !got.IsError ||
			!strings.Contains(got.text(), "Sandbox not found or invalid ID") {
			t.Errorf("%s: %+v", name, got)
		}
		if seen := other.public(); strings.Contains(seen, id) {
			t.Errorf("%s sees %s", name, seen)
		}
	}
	if seen := ann.until(func(s string) bool { return strings.Contains(s, id) }); !strings.Contains(
		seen,
		"namespaces",
	) {
		t.Errorf("its owner sees %s", seen)
	}
	ann.call("sandbox_destroy", "sandbox_id", id)
	ann.until(func(s string) bool { return !strings.Contains(s, id) })
}

// public is what a caller sees at /public/sandboxes.
func (c *coder) public() string {
	c.h.t.Helper()
	return string(c.send("resources/read", `{"uri":"gatehouse:///public/sandboxes"}`, nil))
}

func (c *coder) until(ok func(string) bool) string {
	c.h.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		s := c.public()
		if ok(s) {
			return s
		}
		if time.Now().After(end) {
			c.h.t.Fatalf("it stays at %s", s)
		}
	}
}

// While code runs its output rides on progress, and cancelling the call ends
// it.
func TestOutputStreamsAndCancellingKills(t *testing.T) {
	needSandboxes(t)
	h := sandboxHost(t, nil)
	c := h.enter("ann", "")
	id := c.call("sandbox_create").id("sandbox_id")
	cancelled := false
	note := func(m json.RawMessage) {
		if !cancelled && bytes.Contains(m, []byte("notifications/progress")) && bytes.Contains(m, []byte("working")) {
			cancelled = true
			params := fmt.Sprintf(`{"requestId":%d,"reason":"enough"}`, c.ids.Load())
			go func() {
				if _, err := c.post("notifications/cancelled", params, nil); err != nil {
					t.Error(err)
				}
			}()
		}
	}
	b, _ := json.Marshal(map[string]any{
		"name": "sandbox_exec",
		"arguments": map[string]any{
			"sandbox_id": id,
			"command": "(setsid sh -c 'while :; do date +%s%N >/tmp/beat; sleep 0.02; done' &); " +
				"while [ ! -s /tmp/beat ]; do sleep 0.01; done; echo working; sleep 1000",
			"timeout": 600,
		},
		"_meta": map[string]any{"progressToken": "p"},
	})
	c.send("tools/call", string(b), note)
	if !cancelled {
		t.Fatal("the output was not seen while it ran")
	}
	for end := time.Now().Add(time.Minute); ; {
		got := c.call(
			"sandbox_exec",
			"sandbox_id",
			id,
			"command",
			`a=$(cat /tmp/beat); sleep 0.5; [ "$a" = "$(cat /tmp/beat)" ] && echo ended`,
		)
		if got.text() == "ended\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it goes on: %+v", got)
		}
	}
}

// A pool is filled when a client connects to which sandboxes are offered, and not
// before.
func TestThePoolFillsWhenSandboxesAreServed(t *testing.T) {
	needSandboxes(t)
	h := sandboxHost(t, func(c *config.Config) {
		c.Modules.Sandbox.Pool = manager.PoolSettings{Enabled: true, MinSize: 1, MaxBoots: 1}
		c.Contexts = []config.Context{
			{Name: "plain", Modules: []string{"file"}},
			{Name: "code", Modules: []string{"sandbox"}},
		}
	})
	h.enter("ann", "plain").tools()
	c := h.enter("ann", "code")
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		pool, _ := c.call("sandbox_stats").StructuredContent["pool"].(map[string]any)
		if pool["waiting"] == 1.0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the pool is %v", pool)
		}
	}
	if got := c.call("sandbox_create"); got.StructuredContent["from_pool"] != true {
		t.Errorf("%+v", got)
	}
}

// This is the other process of TestSandboxesOfAKilledHostEnd.
func TestHostToBeKilled(t *testing.T) {
	mark := os.Getenv("SANDBOX_HOST_MARK")
	if mark == "" {
		t.Skip("it is for another test")
	}
	h := sandboxHost(t, func(c *config.Config) { c.Modules.Sandbox.Pool.Enabled = true })
	c := h.enter("ann", "")
	id := c.call("sandbox_create").id("sandbox_id")
	c.call("sandbox_start", "sandbox_id", id, "command", "(setsid sleep 10000 &); sleep 10000; : "+mark)
	fmt.Fprintln(os.Stderr, "running")
	time.Sleep(time.Hour)
}

// After kill -9 of a whole host nothing of its sandboxes goes on, and the next
// host takes away what is left.
func TestSandboxesOfAKilledHostEnd(t *testing.T) {
	needSandboxes(t)
	if runtime.GOOS != "linux" {
		t.Skip("processes are looked for in /proc")
	}
	mark := fmt.Sprintf("mark-%d-%d", os.Getpid(), time.Now().UnixNano())
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestHostToBeKilled$", "-test.v")
	cmd.Env = append(os.Environ(), "SANDBOX_HOST_MARK="+mark, "TMPDIR="+t.TempDir())
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	for said.Scan() && said.Text() != "running" {
	}
	if n := marked(mark); n == 0 {
		t.Error("the program was not seen, so the test proves nothing")
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(time.Minute); marked(mark) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it goes on without its host")
		}
	}
	h := sandboxHost(t, nil)
	h.enter("ann", "").call("sandbox_create") // makes the driver, which cleans up
	left := 0
	filepath.WalkDir("/sys/fs/cgroup", func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "gatehouse-sandbox-") &&
			strings.Contains(e.Name(), fmt.Sprintf("-%d-", cmd.Process.Pid)) {
			left++
		}
		return nil
	})
	if left > 0 {
		t.Errorf("%d control groups are left", left)
	}
}

// marked counts the processes with a word on their command line.
func marked(word string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(word)) {
			n++
		}
	}
	return n
}
