package sandboxtest

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// pressure checks further resources that code can use up. Afterwards the sandbox and another one must still work.
func (s suite) pressure(t *testing.T) {
	limits := sandbox.Limits{MemoryMiB: 96, Processes: 64, Descriptors: 200}
	// What is refused also where memory is held process by process.
	held := map[string]bool{"memfd": true, "memfds": true, "shm": true, "shared": true, "zero": true}
	neighbour := s.box(t, sandbox.Spec{})
	for _, c := range []struct {
		name, what, most string
		refused          []string // how it may end besides the end of the program
	}{
		{"threads", "threads", "1000", []string{"EAGAIN"}},
		{"memory nobody named", "memfd", "400", []string{"ENOSPC", "ENOMEM", "EFBIG", "ENOSYS"}},
		{"pipes and what is in them", "pipes", "1000", []string{"EMFILE", "ENFILE", "EPERM"}},
		{"watches of files", "inotify", "100000", []string{"ENOSPC", "EMFILE", "ENOSYS"}},
		{"many pieces of it", "memfds", "100", []string{"ENOSPC", "ENOMEM", "ENOSYS"}},
		{"memory that is shared", "shm", "400", []string{"ENOSPC", "ENOMEM", "EINVAL", "EPERM", "ENOSYS"}},
		{"mappings that are shared", "shared", "400", []string{"ENOMEM"}},
		{"mappings of a device that are shared", "zero", "400", []string{"ENOMEM", "ENODEV"}},
		{"sockets and what is in them", "sockets", "1000", []string{"EMFILE", "ENOBUFS", "ENOMEM"}},
		{"queues of messages", "queues", "1000", []string{"EMFILE", "ENOSPC", "ENOMEM", "ENOSYS", "EACCES", "EPERM"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.probed(t, sandbox.Spec{Limits: limits})
			r := run(t, b, sandbox.Command{Argv: []string{probePath, "use-up", c.what, c.most}})
			_, got, seen := strings.Cut(r.stdout, "refused: ")
			got, _, _ = strings.Cut(got, "\n")
			switch {
			case seen && slices.Contains(c.refused, got):
			case r.Outcome == sandbox.OutOfMemory, r.Outcome == sandbox.Signalled:
			// the probe's own threads are among those that are refused
			case r.Outcome == sandbox.Failed && strings.Contains(r.stderr, "runtime"):
			case r.Outcome == sandbox.OK && !seen && !s.together() && !held[c.what]:
				t.Logf("%s are not held together here", c.name) // each process by itself
			default:
				t.Errorf("%+v, %v: %q %.300q", r.Result, r.err, r.stdout, r.stderr)
			}
			s.after(t, b, r)
			alive(t, neighbour)
		})
	}
	t.Run("a file larger than the disk", func(t *testing.T) {
		b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{DiskMiB: 16}})
		if r := shell(t, b, "truncate -s 1T sparse; stat -c %s sparse"); r.stdout != "" &&
			strings.TrimSpace(r.stdout) != "0" {
			t.Errorf("a file of %s bytes was made", r.stdout)
		}
		alive(t, b)
	})
}

// traps checks designs that look safe and are not, each by name.
func (s suite) traps(t *testing.T) {
	can := s.driver.Capabilities()
	t.Run("files that fill the memory do not wedge the sandbox", func(t *testing.T) {
		b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 96}})
		for _, dir := range []string{"/tmp", "/dev/shm", "/home/user", "/var/tmp"} {
			if got := answers(t, b, "fill", dir, "400"); got["error"] != "ENOSPC" {
				t.Errorf("%s: %v", dir, got)
			}
		}
		alive(t, b) // while all of it is full
		shell(t, b, "rm -f /tmp/fill* /dev/shm/fill* /home/user/fill* /var/tmp/fill*")
		if r := shell(t, b, "echo again >/tmp/again && cat /tmp/again"); r.stdout != "again\n" {
			t.Errorf("%+v: %q", r.Result, r.stderr)
		}
	})
	t.Run("memory that runs out does not take process 1 along", func(t *testing.T) {
		if can.Memory != sandbox.ByCgroup1 && can.Memory != sandbox.ByCgroup2 {
			t.Skipf("memory is %s here", can.Memory)
		}
		b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}})
		for range 3 {
			r := run(t, b, sandbox.Command{Argv: []string{probePath, "use-up", "memfd", "400"}})
			if r.Outcome == sandbox.Lost {
				t.Fatalf("%+v, %v", r.Result, r.err)
			}
			b = s.after(t, b, r)
		}
	})
	t.Run("the agent is another user than the code", func(t *testing.T) {
		if !can.OwnUsers {
			t.Skip("there is only one user here; the agent is out of reach by its space of processes")
		}
		b := s.box(t, sandbox.Spec{})
		if r := shell(t, b, "kill -STOP 1 || kill -KILL 1 || cat /proc/1/mem || echo held"); r.stdout != "held\n" {
			t.Errorf("%+v: %q %q", r.Result, r.stdout, r.stderr)
		}
		alive(t, b)
	})
	t.Run("calls of another kind of processor are ended", func(t *testing.T) {
		if runtime.GOARCH != "amd64" {
			t.Skip("amd64 alone has other ways into the kernel")
		}
		b := s.probed(t, sandbox.Spec{})
		for _, way := range []string{"x32", "int80"} {
			r := run(t, b, sandbox.Command{Argv: []string{probePath, "foreign", way}, Timeout: s.foreignWait()})
			if r.Outcome != sandbox.Signalled && !(s.userKernel() && r.Outcome == sandbox.TimedOut) ||
				strings.Contains(r.stdout, "allowed") {
				t.Errorf("%s: %+v, %q", way, r.Result, r.stdout)
			}
		}
		alive(t, b)
	})
	t.Run("what tells of the host is not there", func(t *testing.T) {
		b := s.box(t, sandbox.Spec{})
		if r := shell(t, b, "cat /etc/machine-id /var/lib/dbus/machine-id 2>/dev/null"); r.stdout != "" {
			t.Errorf("the machine's id is %q", r.stdout)
		}
		// A kernel in user space has groups of its own.
		if r := shell(t, b, "cut -d: -f3 /proc/self/cgroup | sort -u"); r.stdout != "/\n" && r.stdout != "" &&
			!(s.userKernel() && r.stdout == "/\n/code\n") {
			t.Errorf("the control groups are %q", r.stdout)
		}
		for line := range strings.Lines(shell(t, b, "cut -d' ' -f4 /proc/self/mountinfo | sort -u").stdout) {
			// A container runtime shows the folder its driver made for it.
			if !strings.Contains(line, "/gatehouse-") &&
				(strings.Contains(line, filepath.Dir(t.TempDir())) || strings.Contains(line, "/var/lib")) {
				t.Errorf("the mounts tell of %q", line)
			}
		}
		if r := shell(t, b,
			"umask; ulimit -Hc; cat /proc/self/personality 2>/dev/null"); !strings.HasPrefix(r.stdout, "0022\n0\n") {
			t.Errorf("%q", r.stdout)
		}
	})
}

// floods checks streams that do not end, or end in an unusual way.
func (s suite) floods(t *testing.T) {
	b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{OutputBytes: 100_000}})
	for name, c := range map[string]struct {
		script string
		want   sandbox.Outcome
		size   int
	}{
		"both streams":        {"yes & yes >&2; wait", sandbox.OutputLimit, 100_000},
		"bytes that are zero": {"cat /dev/zero", sandbox.OutputLimit, 100_000},
		"no end of a line":    {"head -c 99999 /dev/zero | tr '\\0' x", sandbox.OK, 99_999},
		"byte by byte":        {"i=0; while [ $i -lt 500 ]; do printf x; i=$((i+1)); done", sandbox.OK, 500},
		"no text":             {"printf '\\377\\376\\000\\033]0;title\\007'", sandbox.OK, 13},
	} {
		t.Run(name, func(t *testing.T) {
			r := shell(t, b, c.script)
			if r.Outcome != c.want || len(r.stdout) > c.size || c.want == sandbox.OK && len(r.stdout) != c.size {
				t.Errorf("%+v, %v with %d bytes and %d of errors", r.Result, r.err, len(r.stdout), len(r.stderr))
			}
			alive(t, b)
		})
	}
	t.Run("much more than is kept", func(t *testing.T) {
		var n counter
		r := run(t, b, sandbox.Command{
			Argv:        []string{"sh", "-c", "head -c 16M /dev/zero; head -c 16M /dev/zero >&2"},
			Stdout:      &n,
			Stderr:      &n,
			OutputBytes: -1,
		})
		if r.Outcome != sandbox.OK || n.sum() != 32<<20 {
			t.Errorf("%+v, %v: %d bytes", r.Result, r.err, n.sum())
		}
	})
}

// counter counts what is written to it.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(b)
	return len(b), nil
}

func (c *counter) sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// oddEnds checks sandboxes that end at an unusual moment.
func (s suite) oddEnds(t *testing.T) {
	t.Run("while it forks", func(t *testing.T) {
		if s.noWall() || s.driver.Capabilities().Processes == sandbox.NotEnforced {
			t.Skip("nothing would hold a fork bomb here")
		}
		b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{Processes: 64}})
		p, err := b.Exec(t.Context(), sandbox.Command{
			Argv:    []string{"sh", "-c", "b() { b | b & }; b; echo on; sleep 1000"},
			Timeout: -1,
			Stdout:  &bytes.Buffer{},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		p.Wait()
	})
	t.Run("twice at once", func(t *testing.T) {
		b := s.box(t, sandbox.Spec{})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	t.Run("while files are written", func(t *testing.T) {
		b := s.box(t, sandbox.Spec{})
		f, ok := b.(sandbox.Files)
		if !ok {
			t.Skip("the driver offers no files")
		}
		begun := make(chan struct{})
		done := make(chan error)
		go func() {
			_, err := f.WriteFile(t.Context(), "endless", endless(func() { close(begun) }), sandbox.WriteOptions{})
			done <- err
		}()
		<-begun
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err == nil {
			t.Error("a file without end was written")
		}
	})
	t.Run("while it is made", func(t *testing.T) {
		for i := range 12 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			if b, err := s.driver.Create(ctx, sandbox.Spec{}); err == nil {
				b.Close() // it was quicker
			}
			cancel()
		}
		alive(t, s.box(t, sandbox.Spec{}))
	})
}

// endless is a file without an end; begun is called when it is read for the first time.
func endless(begun func()) *endlessReader { return &endlessReader{begun: begun} }

type endlessReader struct {
	begun func()
	once  sync.Once
	reads int
}

// Read returns a few bytes at a time, and an error if nothing else stops the reader.
func (e *endlessReader) Read(b []byte) (int, error) {
	e.once.Do(e.begun)
	time.Sleep(time.Millisecond)
	if e.reads++; e.reads > int(patience/time.Millisecond) {
		return 0, io.EOF
	}
	return copy(b, strconv.Itoa(len(b))), nil
}
