package sandboxtest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// pausable makes a sandbox that can be paused, or skips the test if the driver has none.
func (s suite) pausable(t *testing.T, spec sandbox.Spec) (sandbox.Sandbox, sandbox.Pausable) {
	t.Helper()
	b := s.box(t, spec)
	p, ok := b.(sandbox.Pausable)
	if !ok {
		s.notOffered(t, "pausing")
	}
	if err := p.Pause(t.Context()); err != nil {
		t.Skipf("nothing can be paused here: %v", err)
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, p
}

// counting counts the bytes that are written to it.
type counting struct{ n atomic.Int64 }

func (c *counting) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// rest waits until no more bytes arrive, and returns how many there are.
func (c *counting) rest(t *testing.T) int64 {
	t.Helper()
	const quiet = 200 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		before := c.n.Load()
		time.Sleep(quiet)
		if after := c.n.Load(); after == before {
			return after
		}
		if time.Now().After(end) {
			t.Fatal("it goes on although it is paused")
		}
	}
}

// more waits until there are more bytes than a number.
func (c *counting) more(t *testing.T, than int64) {
	t.Helper()
	for end := time.Now().Add(patience); c.n.Load() <= than; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not go on")
		}
	}
}

const ticks = "while :; do echo tick; sleep 0.01; done"

// pause checks that a sandbox stops and continues as a whole.
func (s suite) pause(t *testing.T) {
	s.pausable(t, sandbox.Spec{})
	t.Run("it stands still and goes on", s.pausesAndResumes)
	t.Run("it says that it is paused", s.pausedErrors)
	t.Run("the time of a call stands still too", s.pausesDeadline)
	t.Run("closed while it is paused", s.closesPaused)
}

func (s suite) pausesAndResumes(t *testing.T) {
	t.Parallel()
	b, p := s.pausable(t, sandbox.Spec{})
	shell(t, b, "echo kept >/home/user/kept; echo kept >/tmp/kept")
	var seen counting
	c, err := b.Exec(t.Context(), sandbox.Command{
		Argv:        []string{"sh", "-c", ticks},
		Stdout:      &seen,
		Timeout:     -1,
		OutputBytes: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		seen.more(t, seen.n.Load())
		for range 2 {
			if err := p.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		still := seen.rest(t)
		for range 2 {
			if err := p.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		seen.more(t, still)
		if r := shell(t, b, "cat /home/user/kept /tmp/kept"); r.stdout != "kept\nkept\n" {
			t.Errorf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
		}
	}
	c.Signal(9)
	if r, err := c.Wait(); r.Signal != 9 || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	alive(t, b)
}

func (s suite) pausedErrors(t *testing.T) {
	t.Parallel()
	b, p := s.pausable(t, sandbox.Spec{})
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, err := range pausedAnswers(t.Context(), b) {
		if !errors.Is(err, sandbox.ErrPaused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive(t, b)
}

func (s suite) pausesDeadline(t *testing.T) {
	t.Parallel()
	const given = 5 * time.Second
	b, p := s.pausable(t, sandbox.Spec{})
	from, to := io.Pipe()
	c, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "read line"}, Stdin: from,
		Timeout: given})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(given + 100*time.Millisecond)
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	io.WriteString(to, "go on\n")
	if r, err := c.Wait(); r.Outcome != sandbox.OK || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	clockIsRight(t, b)
}

func (s suite) closesPaused(t *testing.T) {
	t.Parallel()
	b, p := s.pausable(t, sandbox.Spec{})
	c, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", ticks}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if r, err := c.Wait(); r.Outcome != sandbox.Lost || err == nil {
		t.Errorf("%+v, %v, want lost", r, err)
	}
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Error("it is not done")
	}
	for name, err := range map[string]error{"pausing": p.Pause(t.Context()), "resuming": p.Resume(t.Context())} {
		if !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%s what is closed: %v", name, err)
		}
	}
}

// clockIsRight checks the clock of programs. Its error must be less than the time for which these tests pause a
// sandbox.
func clockIsRight(t *testing.T, b sandbox.Sandbox) {
	t.Helper()
	const off = 2 * time.Second
	before := time.Now()
	r := shell(t, b, "date +%s")
	after := time.Now()
	at, err := strconv.ParseInt(strings.TrimSpace(r.stdout), 10, 64)
	if now := time.Unix(at, 0); err != nil || now.Before(before.Add(-off)) || now.After(after.Add(off)) {
		t.Errorf("its clock says %v, at %v: %+v, %v", now, before, r.Result, r.err)
	}
}

// pausedAnswers returns the error of each operation on a paused sandbox.
func pausedAnswers(ctx context.Context, b sandbox.Sandbox) map[string]error {
	_, err := b.Exec(ctx, sandbox.Command{Argv: []string{"true"}})
	all := map[string]error{"exec": err, "ping": b.Ping(ctx)}
	if f, ok := b.(sandbox.Files); ok {
		_, all["reading"] = f.ReadFile(ctx, "/etc/passwd", 0, 0, io.Discard)
		_, all["writing"] = f.WriteFile(ctx, "new", strings.NewReader("new"), sandbox.WriteOptions{})
		_, _, all["listing"] = f.List(ctx, "/", "", 0)
		all["removing"] = f.Remove(ctx, "new", false)
	}
	if n, ok := b.(sandbox.Networked); ok {
		all["a way out"] = n.SetNetwork(ctx, sandbox.Network{Allow: []string{"example.com:443"}})
	}
	if a, ok := b.(sandbox.Adjustable); ok {
		all["other limits"] = a.Adjust(ctx, sandbox.Limits{MemoryMiB: 100}, nil)
	}
	if m, ok := b.(sandbox.UsageReporter); ok {
		_, all["what it uses"] = m.Usage(ctx)
	}
	if a, ok := b.(sandbox.Archive); ok {
		all["packing"] = a.Pack(ctx, "/home/user", io.Discard)
		all["unpacking"] = a.Unpack(ctx, "/home/user", strings.NewReader(""))
	}
	if p, ok := b.(sandbox.Dialer); ok {
		c, err := p.Dial(ctx, 1)
		if err == nil {
			c.Close()
		}
		all["a port"] = err
	}
	return all
}

// usage checks what a sandbox reports about its use of resources.
func (s suite) usage(t *testing.T) {
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 128}})
	m, ok := b.(sandbox.UsageReporter)
	if !ok {
		s.notOffered(t, "telling what it uses")
	}
	tell := func() sandbox.Usage {
		t.Helper()
		u, err := m.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	// until waits for what the kernel may count a moment later.
	until := func(what string, is func(sandbox.Usage) bool) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			u := tell()
			if is(u) {
				return
			}
			if time.Now().After(end) {
				t.Errorf("%s: %+v", what, u)
				return
			}
		}
	}
	first := tell()
	if first == (sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}) {
		t.Skip("nothing is counted here")
	}
	shell(t, b, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
	until("processor time", func(u sandbox.Usage) bool { return first.CPU < 0 || u.CPU > first.CPU })
	sleeping, err := b.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; wait"},
		Timeout: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	until("processes", func(u sandbox.Usage) bool { return first.Processes < 0 || u.Processes >= first.Processes+10 })
	sleeping.Signal(9)
	sleeping.Wait()
	shell(t, b, "head -c 20m /dev/zero >/tmp/large")
	until("memory", func(u sandbox.Usage) bool { return first.Memory < 0 || u.Memory >= first.Memory+10<<20 })
	until("memory at most", func(u sandbox.Usage) bool { return first.Peak < 0 || u.Peak >= 20<<20 })
	until("disk", func(u sandbox.Usage) bool { return first.Disk < 0 || u.Disk >= first.Disk+20<<20 })
	if can := s.driver.Capabilities().Memory; !s.userKernel() &&
		(can == sandbox.ByCgroup1 || can == sandbox.ByCgroup2) {
		run(t, b, sandbox.Command{Argv: []string{probePath, "hog", "400"}})
		until("ended for want of memory", func(u sandbox.Usage) bool { return u.OOMKills > first.OOMKills })
	}
	alive(t, b)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Usage(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("what a closed one uses: %v", err)
	}
}
