package idelink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/exec/idelink"
	"gatehouse/internal/exec/rpc"
)

// An editor in another process is this test program, started with listener: it serves in a folder until its input ends.
const listener = "listener"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == listener {
		s := echo("Other")
		if err := s.Listen(os.Args[2]); err != nil {
			panic(err)
		}
		fmt.Println(s.Path)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { os.Stdin.Read(make([]byte, 1)); cancel() }()
		s.Serve(ctx)
		return
	}
	os.Exit(m.Run())
}

// echo is an editor that answers each request with its parameters.
func echo(name string) *idelink.Server {
	s := &idelink.Server{
		Accept: func(*rpc.Conn) func() { return func() {} },
		Handler: func(func() *rpc.Conn) rpc.Handler {
			return rpc.Handler{
				Request: func(_ context.Context, _ string, params json.RawMessage) (any, error) { return params, nil },
			}
		},
	}
	s.Editor, s.Folders = name, []string{"/work"}
	return s
}

// serve serves until the test ends, and returns the folder of the lock file.
func serve(t *testing.T) (*idelink.Server, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ide")
	s := echo("Test")
	if err := s.Listen(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Path); !os.IsNotExist(err) {
			t.Errorf("the lock file stays: %v", err)
		}
	})
	return s, dir
}

func TestAnAgentFindsTheEditor(t *testing.T) {
	s, dir := serve(t)
	if info, err := os.Stat(s.Path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the lock file is %v, %v", info.Mode(), err)
	}
	found, unusable := idelink.FindLocks(dir)
	if len(found) != 1 || found[0].Editor != "Test" || len(unusable) > 0 {
		t.Fatalf("found %+v, unusable %v", found, unusable)
	}
	conn, err := idelink.Dial(t.Context(), found[0], rpc.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var got string
	if err := conn.Call(t.Context(), "any", "words", &got); err != nil || got != "words" {
		t.Errorf("got %q, %v", got, err)
	}
}

// An agent connects with the secret of the lock file alone: with none, with another one, twice, from a page, and under
// another name of this machine it is refused.
//
//redteam:attack Editors know agents by the lock file: no secret, a wrong one, two, pages of browsers, and another name of this machine
func TestOnlyTheSecretConnects(t *testing.T) {
	s, _ := serve(t)
	const name = "X-Claude-Code-Ide-Authorization"
	for _, c := range []struct {
		what   string
		header http.Header
		host   string
		status int
	}{
		{"right", http.Header{name: {s.Token}}, "", http.StatusSwitchingProtocols},
		{"lower case", http.Header{"x-claude-code-ide-authorization": {s.Token}}, "", http.StatusSwitchingProtocols},
		{"missing", nil, "", http.StatusUnauthorized},
		{"empty", http.Header{name: {""}}, "", http.StatusUnauthorized},
		{"wrong", http.Header{name: {strings.Repeat("0", 32)}}, "", http.StatusUnauthorized},
		{"a beginning", http.Header{name: {s.Token[:31]}}, "", http.StatusUnauthorized},
		{"longer", http.Header{name: {s.Token + "0"}}, "", http.StatusUnauthorized},
		{"twice", http.Header{name: {s.Token, s.Token}}, "", http.StatusUnauthorized},
		{"as bearer", http.Header{"Authorization": {"Bearer " + s.Token}}, "", http.StatusUnauthorized},
		{"a page", http.Header{name: {s.Token}, "Origin": {"https://example.com"}}, "", http.StatusForbidden},
		{"a page of this machine", http.Header{name: {s.Token}, "Origin": {"http://127.0.0.1:" + strconv.Itoa(s.Port)}},
			"", http.StatusForbidden},
		{"a page of a file", http.Header{name: {s.Token}, "Origin": {"null"}}, "", http.StatusForbidden},
		{"another name", http.Header{name: {s.Token}}, "attacker.example:" + strconv.Itoa(s.Port),
			http.StatusForbidden},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		conn, res, err := websocket.Dial(ctx, fmt.Sprintf("ws://127.0.0.1:%d/", s.Port), &websocket.DialOptions{
			HTTPHeader: c.header, Host: c.host, Subprotocols: []string{"mcp"},
		})
		if res == nil || res.StatusCode != c.status {
			t.Errorf("%s: got %v, %v, want status %d", c.what, res, err, c.status)
		}
		if err == nil {
			conn.CloseNow()
		}
		cancel()
	}
	// Not even the method and path matter before the secret does.
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/status", s.Port))
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a plain request: %v, %v", res, err)
	}
	res.Body.Close()
}

// A lock file is not trusted if others could have written or read it, if it was left behind, or if it is not whole.
//
//redteam:attack Editors know agents by the lock file: lock files of other users, with loose modes, as links, left behind, and ports that were taken over
func TestLockFilesThatAreNotTrusted(t *testing.T) {
	s, dir := serve(t)
	whole, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	ended := exec.Command(os.Args[0], "-test.run", "^$")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) []byte {
		var m map[string]any
		json.Unmarshal(whole, &m)
		m[name] = value
		b, _ := json.Marshal(m)
		return b
	}
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"1001.lock":  {func(p string) error { return write(p, with("pid", ended.Process.Pid), 0o600) }, "left behind"},
		"1002.lock":  {func(p string) error { return write(p, whole, 0o644) }, "mode is 0644"},
		"1003.lock":  {func(p string) error { return write(p, whole, 0o660) }, "mode is 0660"},
		"1004.lock":  {func(p string) error { return os.Symlink(s.Path, p) }, "symbolic link"},
		"1005.lock":  {func(p string) error { return write(p, []byte("/a\n/b"), 0o600) }, "not valid"},
		"1006.lock":  {func(p string) error { return write(p, with("authToken", ""), 0o600) }, "authToken"},
		"1007.lock":  {func(p string) error { return write(p, with("transport", "sse"), 0o600) }, "transport"},
		"port.lock":  {func(p string) error { return write(p, whole, 0o600) }, "not a port"},
		"1008.lock":  {func(p string) error { return os.Mkdir(p, 0o700) }, "type"},
		"1009.lock":  {func(p string) error { return write(p, make([]byte, 100<<10), 0o600) }, "at most"},
		"70000.lock": {func(p string) error { return write(p, whole, 0o600) }, "not a port"},
	} {
		if runtime.GOOS == "windows" && (strings.Contains(c.want, "mode") || strings.Contains(c.want, "link")) {
			continue
		}
		path := filepath.Join(dir, name)
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		found, unusable := idelink.FindLocks(dir)
		if len(found) != 1 || len(unusable) != 1 || !strings.Contains(fmt.Sprint(unusable[0].Err), c.want) &&
			!strings.Contains(fmt.Sprint(unusable[0].Err), "too many levels of "+c.want) {
			t.Errorf("%s: found %d, unusable %v, want %q", name, len(found), unusable, c.want)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	if os.Geteuid() == 0 {
		path := filepath.Join(dir, "1010.lock")
		if err := write(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, unusable := idelink.FindLocks(dir); len(unusable) != 1 ||
			!strings.Contains(unusable[0].Err.Error(), "another user") {
			t.Errorf("a file of another user: %v", unusable)
		}
		os.Remove(path)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if found, unusable := idelink.FindLocks(dir); len(found) > 0 || len(unusable) != 1 {
		t.Errorf("a folder that all may write to: %v, %v", found, unusable)
	}
	if err := echo("Second").Listen(dir); err == nil || !strings.Contains(err.Error(), "mode is") {
		t.Errorf("a lock file was written to a folder that all may write to: %v", err)
	}
	os.Chmod(dir, 0o700)
}

func write(path string, b []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// When the editor has ended and another program has its port, the secret is not sent to it.
func TestAPortThatAnotherProgramHasTakenOver(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells to which process a port belongs")
	}
	dir := filepath.Join(t.TempDir(), "ide")
	other := exec.Command(os.Args[0], listener, dir)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); other.Wait() }()
	var path string
	if _, err := fmt.Fscan(out, &path); err != nil {
		t.Fatal(err)
	}
	found, unusable := idelink.FindLocks(dir)
	if len(found) != 1 {
		t.Fatalf("unusable: %v", unusable)
	}
	conn, err := idelink.Dial(t.Context(), found[0], rpc.Handler{})
	if err != nil {
		t.Fatalf("the editor of another process: %v", err)
	}
	conn.Close()

	// The lock file names a process that lives, and the port belongs to this test, which is no relative of it.
	stranger := exec.Command("sleep", "1000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	lock := found[0]
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan struct{}, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			got <- struct{}{}
			c.Close()
		}
	}()
	// other is a child of this test, and so not a stranger to its port; its own port is one to the sleeping process.
	lock.PID = stranger.Process.Pid
	if _, err := idelink.Dial(t.Context(), lock, rpc.Handler{}); err == nil ||
		!strings.Contains(err.Error(), "taken it over") {
		t.Errorf("a port of another process: %v", err)
	}
	free := lock
	l.Close()
	free.Port = l.Addr().(*net.TCPAddr).Port
	if _, err := idelink.Dial(t.Context(), free, rpc.Handler{}); err == nil ||
		!strings.Contains(err.Error(), "left behind") {
		t.Errorf("a port without a program: %v", err)
	}
	if len(got) > 0 {
		t.Error("a connection was made")
	}
}
