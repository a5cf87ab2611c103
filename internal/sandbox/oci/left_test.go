//go:build linux && (amd64 || arm64)

package oci

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// small is what every runtime is tried with, also those that do not get the
// whole suite.
func small(t *testing.T, d *Driver) {
	s, err := d.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "cat; id -u; hostname; head -c 300m /dev/zero | tail >/dev/null"}, Stdin: strings.NewReader("hello\n"), Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait()
	if want := "hello\n1000\nsandbox\n"; err != nil || !d.users.One && out.String() != want {
		t.Errorf("%+v, %v: %.100q, want %q", r, err, out.String(), want)
	}
	if d.groups.Held("memory") != sandbox.NotHeld && r.Outcome != sandbox.OutOfMemory {
		t.Errorf("300 MiB of 64: %+v", r)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			d := driver(t, runtime)
			small(t, d) // what is opened once is open now
			before := leftBy(t, d, os.Getpid())
			for range 3 {
				small(t, d)
			}
			if after := settled(t, d, before); after.more(before) || after.groups+after.bundles+after.states > 0 {
				t.Errorf("%+v before, %+v after", before, after)
			}
		})
	}
}

// left is what sandboxes of this process could leave behind.
type left struct{ files, mounts, groups, bundles, states int }

func (l left) more(than left) bool {
	return l.files > than.files || l.mounts > than.mounts || l.groups > than.groups || l.bundles > than.bundles || l.states > than.states
}

// Others on this machine mount and unmount as well, and what an earlier test
// left to the collector may be closed: what is more than before has to stay so
// to count.
func settled(t *testing.T, d *Driver, before left) left {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if after := leftBy(t, d, os.Getpid()); !after.more(before) || time.Now().After(end) {
			return after
		}
	}
}

func leftBy(t *testing.T, d *Driver, pid int) (l left) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	bundles, _ := filepath.Glob(filepath.Join(d.folder, prefix+"*"))
	states, _ := filepath.Glob(filepath.Join(d.folder, "state", "*"))
	l = left{files: len(files), mounts: strings.Count(string(mounts), "\n"), bundles: len(bundles), states: len(states)}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		ours := err == nil && e.IsDir() && (strings.HasPrefix(e.Name(), prefix) || strings.Contains(e.Name(), fmt.Sprintf("-%d-", pid)))
		if ours && strings.HasPrefix(e.Name(), "gatehouse-") {
			l.groups++
		}
		return nil
	})
	return l
}

const (
	markVariable    = "SANDBOX_MARK"
	runtimeVariable = "SANDBOX_RUNTIME"
	pausedVariable  = "SANDBOX_PAUSED" // set when the sandbox is to be paused
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	d, err := New(Options{Runtime: os.Getenv(runtimeVariable)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "(setsid sleep 10000 &); sleep 10000; : " + mark}, Timeout: -1}); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(pausedVariable) != "" {
		if err := s.(sandbox.Pausable).Pause(t.Context()); err != nil {
			t.Skip(err)
		}
	}
	fmt.Fprintln(os.Stderr, "running")
	time.Sleep(time.Hour)
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	for _, runtime := range runtimes {
		for name, paused := range map[string]string{"running": "", "paused": "yes"} {
			t.Run(runtime+" "+name, func(t *testing.T) { killed(t, runtime, paused) })
		}
	}
}

func killed(t *testing.T, runtime, paused string) {
	driver(t, runtime)
	folder := t.TempDir()
	if err := os.Chmod(filepath.Dir(folder), 0o711); err != nil {
		t.Fatal(err)
	}
	mark := rand.Text()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), markVariable+"="+mark, pausedVariable+"="+paused, runtimeVariable+"="+runtime, "TMPDIR="+folder)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cmd.Wait()
		t.Skipf("the other host made no sandbox: %q, %v", line, err)
	}
	// A program has its words a moment after it was started.
	for end := time.Now().Add(time.Minute); marked(mark) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program of the other host was not seen, so the test proves nothing")
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(time.Minute); marked(mark) > 0 || marked(folder) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it goes on without its host")
		}
	}
	d, err := New(Options{Runtime: runtime, Folder: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if l := leftBy(t, d, cmd.Process.Pid); l.groups+l.bundles > 0 {
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
