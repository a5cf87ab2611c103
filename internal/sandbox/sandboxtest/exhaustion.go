package sandboxtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A counted resource is one of which the kernel has a fixed number, for the machine or for a user.
type counted struct {
	name string // as the probe calls it
	most int    // how many each process takes
	want int    // how many others must get
	long bool   // it takes long, and is tried only in the long form
}

var countedResources = []counted{
	{name: "inotify instances", most: 1000, want: 8},
	{name: "inotify watches", most: 1 << 20, want: 1000, long: true},
	{name: "fanotify groups", most: 1000, want: 4},
	{name: "fanotify marks", most: 1 << 20, want: 100, long: true},
	{name: "AIO contexts", most: 5000, want: 4},
	{name: "terminals", most: 1000, want: 4},
	{name: "keys", most: 1000, want: 4},
	{name: "timers", most: 1 << 17, want: 16},
	{name: "pending signals", most: 1 << 17, want: 16},
	{name: "user namespaces", most: 32, want: 1},
	{name: "other namespaces", most: 1000, want: 1},
	{name: "mounts", most: 1000, want: 1},
	{name: "POSIX queues", most: 1000, want: 4},
	{name: "System V queues", most: 100_000, want: 4, long: true},
	{name: "semaphores", most: 100_000, want: 4, long: true},
	{name: "shared memory", most: 100_000, want: 4, long: true},
	{name: "pipes", most: 100, want: 4, long: true},
	{name: "epoll watches", most: 100_000, want: 1000, long: true},
	{name: "files in flight", most: 1000, want: 1},
	{name: "file locks", most: 2000, want: 100, long: true},
	{name: "locked memory", most: 100_000, want: 4},
	{name: "secret memory", most: 100_000, want: 4},
	{name: "socket filters", most: 200, want: 4},
	{name: "system call filters", most: 10, want: 4},
	{name: "TCP buffers", most: 400, want: 2},
	{name: "TCP orphans", most: 100, want: 2, long: true},
	{name: "UDP buffers", most: 400, want: 2},
	{name: "Unix sockets", most: 200, want: 4, long: true},
	{name: "open files", most: 1 << 20, want: 100},
	{name: "processes", most: 300, want: 4, long: true},
	{name: "io_uring", most: 1000, want: 1},
	{name: "events of the kernel", most: 1000, want: 1},
	{name: "programs of BPF", most: 1000, want: 1},
	{name: "leases", most: 1000, want: 4, long: true},
}

// takers is how many processes of a sandbox take a resource at the same time.
const takers = 12

// exhaustion checks that a sandbox which takes all it can get leaves enough for the host and for other sandboxes.
func (s suite) exhaustion(t *testing.T) {
	onHost := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(onHost, s.probe, 0o755); err != nil {
		t.Fatal(err)
	}
	neighbour := s.probed(t, sandbox.Spec{})
	for _, c := range countedResources {
		t.Run(c.name, func(t *testing.T) {
			switch {
			case c.long && os.Getenv("GATEHOUSE_TEST_ALL") == "":
				t.Skip("GATEHOUSE_TEST_ALL=1 tries this too")
			case !s.together() && slices.Contains([]string{"TCP buffers", "UDP buffers", "files in flight"}, c.name):
				how := "sockets not: no control group counts their memory here"
				s.other.Store(&how)
				t.Skip(how)
			}
			greedy := s.probed(t, sandbox.Spec{})
			others := func() [2]string {
				want := strconv.Itoa(c.want)
				return [2]string{
					ableOnHost(t, onHost, c.name, want),
					answers(t, neighbour, "able", c.name, want)["able"],
				}
			}
			before := others()
			release, seen := s.takeAll(t, greedy, c)
			during := others()
			release()
			after := others()
			t.Logf("the host and another sandbox: before %q, meanwhile %q, afterwards %q; the first one %q",
				before, during, after, seen)
			if during != before || after != before {
				t.Error("they did not have the same all the time")
			}
			alive(t, neighbour)
		})
	}
}

// ableOnHost reports whether a program of the host gets an amount of a resource.
func ableOnHost(t *testing.T, probe, kind, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, probe, "able", kind, want)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return err.Error()
	}
	_, got, _ := strings.Cut(strings.TrimSpace(string(out)), ": ")
	return got
}

// takeAll makes a sandbox take a resource until it is refused, and keep it until release is called. told is what the
// sandbox got, or how it ended.
func (s suite) takeAll(t *testing.T, b sandbox.Sandbox, c counted) (release func(), seen []string) {
	t.Helper()
	read, write := io.Pipe()
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:    []string{probePath, "take", c.name, strconv.Itoa(c.most), strconv.Itoa(takers)},
		Stdout:  write,
		Timeout: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		r, err := p.Wait()
		write.CloseWithError(errors.New(string(r.Outcome)))
		ended <- err
	}()
	enough := make(chan []string, 1)
	go func() {
		var lines []string
		in := bufio.NewScanner(read)
		for in.Scan() && !strings.HasPrefix(in.Text(), "taken: ") {
			lines = append(lines, in.Text())
		}
		lines = append(lines, in.Text())
		if err := in.Err(); err != nil {
			lines = append(lines, err.Error())
		}
		enough <- lines
		io.Copy(io.Discard, read)
	}()
	select {
	case seen = <-enough:
	case <-time.After(patience / 3):
		seen = []string{"it has not ended taking more"}
	}
	return func() {
		p.Signal(9)
		// A sandbox with a kernel of its own may end with that kernel's memory.
		if err := <-ended; err != nil && s.driver.Capabilities().Tier < sandbox.UserKernel {
			t.Error(err)
		}
	}, seen
}
