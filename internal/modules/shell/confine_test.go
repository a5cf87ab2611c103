package shell

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// confining is a fixture whose commands are confined.
func confining(t *testing.T, config string) *fixture {
	t.Helper()
	h := moduletest.NewHost(t)
	m, err := New(configOf(t, config))(t.Context(), h.Deps())
	if err != nil {
		if !strings.Contains(err.Error(), "this machine cannot confine commands") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t: t, m: m, dir: moduletest.Folder(t)}
}

// A command that is confined has the caller's folders, to read, and nothing
// else of the host.
func TestAConfinedCommandHasItsFoldersAlone(t *testing.T) {
	t.Parallel()
	d := confining(t, `{"confine":true}`)
	outside := t.TempDir()
	for path, text := range map[string]string{d.path("a.txt"): "mine\n",
		filepath.Join(outside, "b.txt"): "not mine\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(d.path("sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	if r := d.run("cat a.txt; cd sub && pwd; cat"); r.Stdout != "mine\n"+strings.TrimSpace(
		d.run("pwd").Stdout,
	)+"/sub\n" ||
		r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if r := d.run("cat ../a.txt; cat", "working_dir", "sub", "stdin", "typed\n"); r.Stdout != "mine\ntyped\n" ||
		r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if r := d.run("echo x > ~/f && echo y > /tmp/f && cat ~/f /tmp/f; echo $A; exit 3", "env",
		[]string{"A=b"}); r.Stdout != "x\ny\nb\n" ||
		r.ExitCode != 3 {
		t.Errorf("%+v", r)
	}
	for _, command := range []string{
		"echo x > a.txt", "echo x > new", "rm a.txt", "mkdir more", "mv a.txt b.txt",
		"cat " + filepath.Join(outside, "b.txt"), "ls " + outside, "cat ~/f", "cat /etc/shadow", "echo x > /etc/f",
		"kill -9 " + itoa(os.Getpid()),
	} {
		if r := d.run(command); r.ExitCode == 0 || r.TimedOut {
			t.Errorf("%s: %+v", command, r)
		}
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if r := d.run("exec 3<>/dev/tcp/127.0.0.1/"+port, "shell", "bash"); r.ExitCode == 0 {
		t.Errorf("it reaches the host's network: %+v", r)
	}
	if b, err := os.ReadFile(d.path("a.txt")); err != nil || string(b) != "mine\n" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if r := d.run("cat /proc/self/environ; env"); strings.Contains(r.Stdout, "GATEHOUSE") ||
		!strings.Contains(r.Stdout, "HOME=/home/user\n") {
		t.Errorf("%+v", r)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestAConfinedCommandEndsAsOthersDo(t *testing.T) {
	t.Parallel()
	d := confining(t, `{"confine":true,"deny":["rm*"],"output":4096}`)
	patiently(t, func(seconds int) bool {
		r := d.run("echo begun; setsid sleep 1000 & sleep 1000", "timeout", seconds)
		if !r.TimedOut || r.ExitCode != -1 {
			t.Errorf("%+v", r)
		}
		return r.Stdout == "begun\n"
	})
	if r := d.run("kill -9 $$"); r.ExitCode != -1 || r.Signal != "killed" {
		t.Errorf("%+v", r)
	}
	if r := d.run("seq 1 100000; echo oh >&2"); !r.Truncated || !strings.HasPrefix(r.Stdout, "1\n2\n") ||
		!strings.HasSuffix(r.Stdout, "\n100000\n") || r.Stderr != "oh\n" {
		t.Errorf("%.300s", r.Stdout)
	}
	if got := d.refusal("run", args{"command": "echo; rm x"}); got != "denied" {
		t.Errorf("got %q", got)
	}
	if got := d.refusal("run", args{"command": "ls", "working_dir": "/etc"}); got != "outside_root" {
		t.Errorf("got %q", got)
	}
	res, _, err := d.call(t.Context(), "execute_command", args{"command": "pwd >/dev/null; echo out; exit 2"})
	if err != nil || res.Structured.(executeOut) != (executeOut{"pwd >/dev/null; echo out; exit 2", "out\n", 2}) {
		t.Errorf("%+v, %v", res, err)
	}
	// while it is being made, and later
	for _, wait := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if _, _, err := d.call(ctx, "run", args{"command": "sleep 1000", "timeout": 300}); !errors.Is(
			err, context.DeadlineExceeded,
		) {
			t.Errorf("cancelled, it ended with %v", err)
		}
		cancel()
	}
}

func TestWhereFoldersAreShown(t *testing.T) {
	all, err := mapFolders([]tool.Root{{Path: "/srv/a"}, {Path: "/tmp/b"}, {Path: "/home"}, {Path: "/home/user/c/"}})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		"/srv/a": "/srv/a", "/srv/a/x": "/srv/a/x", "/srv/ab": "", "/tmp/b/y": "/folders/2/b/y",
		"/home/z": "/folders/3/home/z", "/etc": "",
	} {
		if got := sandboxPath(all, p); got != want {
			t.Errorf("%s is at %q, want %q", p, got, want)
		}
	}
	if _, err := mapFolders([]tool.Root{{Path: "/"}}); err == nil {
		t.Error("the whole file system is shown")
	}
}

func TestEndsInASandboxAreTold(t *testing.T) {
	for _, x := range []struct {
		r      sandbox.Result
		code   int
		signal string
		late   bool
	}{
		{sandbox.Result{Outcome: sandbox.OK}, 0, "", false},
		{sandbox.Result{Outcome: sandbox.Failed, Code: 4}, 4, "", false},
		{sandbox.Result{Outcome: sandbox.Signalled, Signal: 15}, -1, "terminated", false},
		{sandbox.Result{Outcome: sandbox.TimedOut, Signal: 9}, -1, "killed", true},
		{
			sandbox.Result{Outcome: sandbox.OutOfMemory, Signal: 9}, -1,
			"killed: it needed more than 1024 MiB of memory", false,
		},
	} {
		if s := stateOf(x.r); s.Code != x.code || s.Signal != x.signal || (s.Stopped == errTimeout) != x.late {
			t.Errorf("%+v: %+v", x.r, s)
		}
	}
}
