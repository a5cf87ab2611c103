package sandboxtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// Busy makes a sandbox run programs until its host ends, one of them with a given word on its command line. If
// paused is set, the sandbox is paused.
func Busy(t *testing.T, s sandbox.Sandbox, word string, paused bool) {
	t.Helper()
	if _, err := s.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", "(setsid sleep 10000 &); sleep 10000; : " + word},
		Timeout: -1,
	}); err != nil {
		t.Fatal(err)
	}
	if paused {
		if err := s.(sandbox.Pausable).Pause(t.Context()); err != nil {
			t.Skip(err)
		}
	}
}

// AwaitDeath tells the test that started this process that it may be killed.
func AwaitDeath() {
	fmt.Fprintln(os.Stderr, "running")
	time.Sleep(time.Hour)
}

// KillHost starts another host, which ends in AwaitDeath, kills it, and waits until no process runs whose command
// line has one of words. Each word must have been seen before. It returns what Groups finds the control groups of
// that host by.
func KillHost(t *testing.T, host *exec.Cmd, words func() []string) (groups string) {
	t.Helper()
	out, err := host.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		host.Wait()
		t.Skipf("not run: the other host made no sandbox: %q, %v", line, err)
	}
	all := words()
	unseen := func(word string) bool { return !Runs(word) }
	// A program has its words a moment after it was started.
	if !become(func() bool { return !slices.ContainsFunc(all, unseen) }) {
		t.Errorf("what the other host runs was not seen, so the test proves nothing: %q", all)
	}
	host.Process.Kill()
	host.Wait()
	if !become(func() bool { return !slices.ContainsFunc(all, Runs) }) {
		t.Fatal("it goes on without its host")
	}
	return number(host.Process.Pid)
}

func become(so func() bool) bool {
	for end := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Runs reports whether there is a process with a word on its command line.
func Runs(word string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(all, func(file string) bool {
		line, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(line), word)
	})
}
