//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/procid"
	"gatehouse/internal/sandbox"
)

// says is what a shell in a sandbox prints.
func says(t *testing.T, b sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
		t.Errorf("%s: %+v, %v: %s", script, r, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// small is what is made and goes again: a sandbox that ends while it stands
// still, and where there can be one, another that went on from it.
func small(t *testing.T, d *Driver) {
	t.Helper()
	b, err := d.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, b, "id -u; hostname"); got != "1000\nsandbox" {
		t.Errorf("%q", got)
	}
	if k, ok := b.(sandbox.Snapshotter); ok {
		s, err := k.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := b.(sandbox.Pausable).Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	d := driver(t)
	small(t, d) // what is opened once is open now
	before := leftBy(t, d.folder, os.Getpid())
	for range 2 {
		small(t, d)
	}
	if after := settled(t, d, before); after.more(before) || after.groups+after.folders+after.states+after.processes > 0 {
		t.Errorf("%+v before, %+v after", before, after)
	}
}

// left is what sandboxes of a process could leave behind.
type left struct{ files, mounts, groups, folders, states, processes int }

func (l left) more(than left) bool { return l.files > than.files || l.mounts > than.mounts }

// Others on this machine mount and unmount as well, and what an earlier test
// left to the collector may be closed: what is more than before has to stay so
// to count.
func settled(t *testing.T, d *Driver, before left) left {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if after := leftBy(t, d.folder, os.Getpid()); !after.more(before) || time.Now().After(end) {
			return after
		}
	}
}

func leftBy(t *testing.T, folder string, pid int) (l left) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	l = left{files: len(files), mounts: strings.Count(string(mounts), "\n"), processes: marked(folder)}
	for _, kind := range []string{"root-*", "snapshot-*", prefix + "*"} {
		found, _ := filepath.Glob(filepath.Join(folder, kind))
		l.folders += len(found)
	}
	states, _ := filepath.Glob(filepath.Join(folder, "state", "*"))
	l.states = len(states)
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "gatehouse-") && strings.Contains(e.Name(), fmt.Sprintf("-%d-", pid)) {
			l.groups++
		}
		return nil
	})
	return l
}

const stillVariable = "SANDBOX_STILL"

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	how := os.Getenv(stillVariable)
	if how == "" {
		t.Skip("it is for another test")
	}
	d, err := New(Options{Runsc: built(t)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "(setsid sleep 10000 &); sleep 10000"}, Timeout: -1}); err != nil {
		t.Fatal(err)
	}
	if how == "still" {
		if err := b.(sandbox.Pausable).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(os.Stderr, "ready")
	time.Sleep(time.Hour)
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	built(t)
	for _, how := range []string{"running", "still"} {
		t.Run(how, func(t *testing.T) { killed(t, how) })
	}
}

func killed(t *testing.T, how string) {
	folder := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), stillVariable+"="+how, "TMPDIR="+folder)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cmd.Wait()
		t.Skipf("not run: the other host made no sandbox: %q, %v", line, err)
	}
	if marked(folder) == 0 {
		t.Error("no kernel of the other host was seen, so the test proves nothing")
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(time.Minute); marked(folder) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it goes on without its host")
		}
	}
	d, err := New(Options{Folder: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if l := leftBy(t, folder, cmd.Process.Pid); l.groups > 0 || l.processes > 0 {
		t.Errorf("%+v is left", l)
	}
	if all, err := os.ReadDir(folder); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// marked counts the processes with a word on their command line.
func marked(word string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if b, err := os.ReadFile(p + "/cmdline"); err == nil && strings.Contains(string(b), word) {
			n++
		}
	}
	return n
}

func TestWhatAKilledHostLeftIsSweptAway(t *testing.T) {
	parent := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(parent, prefix+"somebody-1")
	space, _, _ := strings.Cut(procid.Self(), "-")
	gone := filepath.Join(parent, fmt.Sprintf("%s%s-%d-1-1", prefix, space, dead.Process.Pid))
	for _, dir := range []string{kept, gone} {
		if err := os.MkdirAll(filepath.Join(dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := New(Options{Folder: parent})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("what a dead process left is still there: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what is nobody's was removed: %v", err)
	}
}
