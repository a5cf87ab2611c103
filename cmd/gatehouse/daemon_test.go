package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// daemonPID reads the process number of the story's daemon into $DAEMON.
func daemonPID(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: daemonpid")
	}
	ts.Setenv("DAEMON", strings.TrimSpace(ts.ReadFile(filepath.Join("run", "gatehouse", "gatehouse.pid"))))
}

// killDaemon ends the story's daemon without a word, and leaves its number in
// $DAEMON.
func killDaemon(ts *testscript.TestScript, neg bool, args []string) {
	daemonPID(ts, neg, args)
	endDaemon(ts.MkAbs(filepath.Join("run", "gatehouse", "gatehouse.pid")))
}

// endDaemon kills the daemon that a story has left, and waits until it is
// gone, so that its folders can be removed.
func endDaemon(file string) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(file)
		pid, numErr := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || numErr != nil {
			return
		}
		if f, err := os.Open(file); err != nil || syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			f.Close() // the claim goes with the last of its threads, and the number may be another's by now
			return
		} else {
			f.Close()
		}
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// activate starts "gatehouse daemon run" as systemd does: with a Unix socket
// ($UNIX), one for tcp ($TCP) and one for health ($HEALTH) open already. It
// waits until the daemon has said that it is ready.
func activate(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: activate arguments...")
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: ts.MkAbs("notify"), Net: "unixgram"})
	ts.Check(err)
	ts.Defer(func() { manager.Close() })
	s := &server{ended: make(chan error, 1)}
	s.cmd = exec.Command(
		"sh",
		append([]string{"-c", `LISTEN_PID=$$ exec "$0" daemon run "$@"`, find(ts, "gatehouse")}, args...)...)
	s.cmd.Dir = ts.Getenv("WORK")
	s.cmd.Env = []string{
		"LISTEN_FDS=3",
		"LISTEN_FDNAMES=unknown:tcp:health",
		"NOTIFY_SOCKET=" + ts.MkAbs("notify"),
		"WATCHDOG_USEC=200000",
	}
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "GORACE"} {
		s.cmd.Env = append(s.cmd.Env, name+"="+ts.Getenv(name))
	}
	for _, l := range []struct{ name, network, address string }{{"UNIX", "unix", ts.MkAbs("activated")},
		{"TCP", "tcp", "127.0.0.1:0"}, {"HEALTH", "tcp", "127.0.0.1:0"}} {
		ln, err := net.Listen(l.network, l.address)
		ts.Check(err)
		defer ln.Close()
		ts.Setenv(l.name, ln.Addr().String())
		f, err := ln.(interface{ File() (*os.File, error) }).File()
		ts.Check(err)
		defer f.Close()
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, f)
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
	}
	s.cmd.Stdout = &s.out
	stderr, err := s.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(s.cmd.Start())
	ts.Defer(func() { s.cmd.Process.Kill() })
	go s.listen(stderr, make(chan string, 10))
	on(ts).server = s
	said := make([]byte, 4096)
	for _, want := range []string{"READY=1", "WATCHDOG=1"} {
		ts.Check(manager.SetReadDeadline(time.Now().Add(patience)))
		n, err := manager.Read(said)
		if err != nil || !strings.HasPrefix(string(said[:n]), want) {
			ts.Fatalf("the daemon tells its manager %q, %v, want %s:\n%s", said[:n], err, want, s.err.String())
		}
	}
}

// runDaemon starts "gatehouse daemon run" in the foreground; interrupt ends it.
func runDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: rundaemon arguments...")
	}
	s := &server{ended: make(chan error, 1)}
	s.cmd = exec.Command(find(ts, "gatehouse"), append([]string{"daemon", "run"}, args...)...)
	s.cmd.Dir = ts.Getenv("WORK")
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "GORACE"} {
		s.cmd.Env = append(s.cmd.Env, name+"="+ts.Getenv(name))
	}
	s.cmd.Stdout = &s.out
	var err error
	s.stdin, err = s.cmd.StdinPipe()
	ts.Check(err)
	stderr, err := s.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(s.cmd.Start())
	ts.Defer(func() { s.cmd.Process.Kill() })
	go s.listen(stderr, make(chan string, 10))
	on(ts).server = s
	s.hears(ts, "msg=ready")
}

// hears waits until a server has logged a text.
func (s *server) hears(ts *testscript.TestScript, text string) {
	for end := time.Now().Add(patience); !strings.Contains(s.err.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("gatehouse does not say %q:\n%s", text, s.err.String())
		}
	}
}

// terminate sends the story's server SIGTERM, and waits until it has logged a
// text, not until its end.
func terminate(ts *testscript.TestScript, neg bool, args []string) {
	s := on(ts).server
	if neg || s == nil || len(args) != 1 {
		ts.Fatalf("usage: terminate TEXT, after rundaemon")
	}
	ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	s.hears(ts, args[0])
}

// appears waits until a file is there.
func appears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appears FILE")
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not appear", args[0])
		}
	}
}

// disk mounts a file system of 1 MiB on a folder until the story ends.
func disk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: disk FOLDER")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", dir).CombinedOutput()
	if err != nil {
		ts.Fatalf("%v %s", err, out)
	}
	ts.Defer(func() { exec.Command("umount", "-l", dir).Run() })
}

// fill fills the disk that a folder is on, with a file there.
func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: fill FOLDER")
	}
	f, err := os.Create(ts.MkAbs(filepath.Join(args[0], "filling")))
	ts.Check(err)
	defer f.Close()
	for size := 4096; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// mounts reports whether this test may mount file systems.
func mounts(dir string) bool {
	if os.Getuid() != 0 || exec.Command("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", dir).Run() != nil {
		return false
	}
	return exec.Command("umount", dir).Run() == nil
}
