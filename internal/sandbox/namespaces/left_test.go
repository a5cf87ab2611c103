//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// left is what sandboxes of this process could leave behind.
type left struct{ files, mounts, groups, children int }

func (l left) more(than left) bool {
	return l.files > than.files || l.mounts > than.mounts || l.groups > than.groups || l.children > than.children
}

// Others on this machine mount and unmount as well, and what an earlier test
// left to the collector may be closed: what is more than before has to stay so
// to count.
func settled(t *testing.T, before left) left {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if after := leftBy(t, os.Getpid()); !after.more(before) || time.Now().After(end) {
			return after
		}
	}
}

func leftBy(t *testing.T, pid int) (l left) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	l.files, l.mounts = len(files), strings.Count(string(mounts), "\n")
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "gatehouse-sandbox-") && strings.Contains(e.Name(), fmt.Sprintf("-%d-", pid)) {
			l.groups++
		}
		return nil
	})
	for p := range processes {
		b, _ := os.ReadFile(p + "/stat")
		if _, rest, ok := strings.Cut(string(b), ") "); ok && len(strings.Fields(rest)) > 1 && strings.Fields(rest)[1] == fmt.Sprint(pid) {
			l.children++
		}
	}
	return l
}

// processes are the folders of proc.
func processes(yield func(string) bool) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if !yield(p) {
			return
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	d := driver(t, Options{})
	var s life
	s.cycle(t, d) // what is opened once is open now
	before := leftBy(t, os.Getpid())
	for range 40 {
		s.cycle(t, d)
	}
	if after := settled(t, before); after.more(before) || after.groups != 0 || after.children != 0 {
		t.Errorf("%+v before, %+v after", before, after)
	}
}

// life is the life of one sandbox.
type life struct{}

func (life) cycle(t *testing.T, d *Driver) {
	t.Helper()
	s, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "sleep 1000 & sleep 1000"}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	p.Wait()
}

const (
	markVariable   = "SANDBOX_MARK"
	pausedVariable = "SANDBOX_PAUSED" // set when the sandbox is to be paused
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	s, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
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
	self := uint32(os.Geteuid())
	users := map[string]uint32{"self": self, "self, paused": self}
	if self == 0 {
		users["nobody"] = 65534
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			driver(t, Options{})
			mark := rand.Text()
			cmd := again(t, uid, "^TestHostOfTheOther$", markVariable+"="+mark)
			if strings.HasSuffix(name, "paused") {
				cmd.Env = append(cmd.Env, pausedVariable+"=yes")
			}
			out, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
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
			for end := time.Now().Add(time.Minute); marked(mark) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("it goes on without its host")
				}
			}
			driver(t, Options{}) // the next host takes the groups away
			if l := leftBy(t, cmd.Process.Pid); l.groups != 0 {
				t.Errorf("%d groups are left", l.groups)
			}
		})
	}
}

// marked counts the processes with a word on their command line.
func marked(word string) (n int) {
	for p := range processes {
		if b, err := os.ReadFile(p + "/cmdline"); err == nil && strings.Contains(string(b), word) {
			n++
		}
	}
	return n
}
