package proc

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/shield"
)

// A child of a host is recognized, however it separates itself from the host.
//
//redteam:attack Children never answer: a double fork, a session of its own, a terminal, a clean environment, another namespace
func TestWhatCameOfAChildIsKnown(t *testing.T) {
	for name, prefix := range map[string]string{
		"itself":               "exec ",
		"a child":              "",
		"a double fork":        "( setsid ",
		"a clean environment":  "( setsid env -i PATH=$PATH ",
		"another namespace":    "( setsid unshare -m ",
		"a user of its own":    "( setsid unshare -Urm ",
		"another process tree": "( setsid env -i PATH=$PATH sh -c 'sleep 0.1; exec \"$@\"' x ",
	} {
		for _, closed := range []bool{true, false} {
			for _, terminal := range []bool{false, true} {
				release := func() {}
				if closed {
					release = shield.Close([]string{filepath.Join(t.TempDir(), "config")}, nil, nil)
				}
				dir := t.TempDir()
				script := prefix + `sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 60'`
				if strings.HasPrefix(prefix, "(") {
					script += " || echo none > pid & ) >/dev/null 2>&1 </dev/null; sleep 60"
				}
				spec := Spec{Path: "sh", Args: []string{"-c", script}, Dir: dir, Whole: true}
				if terminal {
					spec.Terminal = &Size{Cols: 80, Rows: 24}
				}
				p, err := Start(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				var b []byte
				for end := time.Now().Add(time.Minute); len(b) == 0 &&
					time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					b, _ = os.ReadFile(filepath.Join(dir, "pid"))
				}
				pid, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
				if pid == 0 {
					t.Logf("%s, closed %v, terminal %v: it cannot be done here", name, closed, terminal)
				} else if !IsChild(pid) {
					t.Errorf("%s, closed %v, terminal %v: it is not known", name, closed, terminal)
				}
				p.Stop(t.Context())
				release()
			}
		}
	}
}

// The host, its parent, and processes that Start did not start are not children.
func TestWhatCameOfNoChildIsLeftAlone(t *testing.T) {
	if IsChild(os.Getppid()) {
		t.Skip("these tests run in a child of a host themselves")
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	for _, pid := range []int{os.Getpid(), os.Getppid(), 1, cmd.Process.Pid} {
		if IsChild(pid) {
			t.Errorf("process %d is held to be a child", pid)
		}
	}
	for group, want := range map[string]bool{"gatehouse-main.service": false, "gatehouse-": false, leafName(): true,
		keptPrefix + "ABC": true} {
		if got := ofHost(group) || strings.HasPrefix(group, keptPrefix); got != want {
			t.Errorf("group %s: got %v, want %v", group, got, want)
		}
	}
}
