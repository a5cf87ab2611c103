package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// kept takes a snapshot that is closed when the test ends.
func kept(t *testing.T, b sandbox.Sandbox) sandbox.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	k, err := b.(sandbox.Snapshotter).Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("throw away a snapshot: %v", err)
		}
	})
	if k.Size() <= 0 {
		t.Errorf("a snapshot takes %d bytes", k.Size())
	}
	return k
}

// from makes a sandbox from a snapshot; it is closed when the test ends.
func from(t *testing.T, k sandbox.Snapshot) sandbox.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := k.Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// countsOn is a script that counts in a file and prints a line when it begins.
const countsOn = `echo 1 >/tmp/count; echo counts; i=1; while :; do i=$((i+1)); echo $i >/tmp/next; mv /tmp/next /tmp/count; sleep 0.02; done`

// count returns how far the program has counted, once that is more than a number.
func count(t *testing.T, b sandbox.Sandbox, more int) int {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		r := shell(t, b, "cat /tmp/count")
		n, err := strconv.Atoi(strings.TrimSpace(r.stdout))
		if err != nil {
			t.Fatalf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
		}
		if n > more {
			return n
		}
		if time.Now().After(end) {
			t.Fatalf("it does not go on after %d", n)
		}
	}
}

// snapshots checks that sandboxes made from a snapshot continue from its moment, independently of each other.
func (s suite) snapshots(t *testing.T) {
	first := s.box(t, sandbox.Spec{Env: []string{"OF_THE_SANDBOX=1"}})
	if _, ok := first.(sandbox.Snapshotter); !ok {
		s.notOffered(t, "being kept")
	}
	t.Run("it goes on, and so do others from there", func(t *testing.T) { s.snapshotContinues(t, first) })
	t.Run("what goes on lives by itself", s.snapshotIndependent)
	t.Run("what is in memory is as it was", s.memories)
	t.Run("while it is paused", s.snapshotPaused)
	t.Run("when it is closed", s.snapshotClosed)
}

func (s suite) snapshotContinues(t *testing.T, first sandbox.Sandbox) {
	var out bytes.Buffer
	counts, err := first.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", countsOn}, Stdout: &out,
		Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	shell(t, first, "while [ ! -s /tmp/count ]; do sleep 0.01; done; echo before >kept; touch /tmp/moment")
	k := kept(t, first)
	shell(t, first, "echo after >kept")
	count(t, first, count(t, first, 0))
	one, other := from(t, k), from(t, k)
	random := map[string]bool{}
	for _, b := range []sandbox.Sandbox{one, other} {
		count(t, b, count(t, b, 0)) // what was started goes on
		r := shell(t, b, "cat kept; echo $OF_THE_SANDBOX")
		words := strings.Fields(r.stdout)
		if len(words) != 2 || words[0] != "before" || words[1] != "1" {
			t.Fatalf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
		}
		clockIsRight(t, b)
		random[shell(t, b, "od -An -N16 -tx1 /dev/urandom; cat /proc/sys/kernel/random/uuid").stdout] = true
	}
	if len(random) != 2 {
		t.Errorf("two that go on from one moment have the same randomness: %v", random)
	}
	shell(t, one, "echo one >kept")
	if r := shell(t, other, "cat kept"); r.stdout != "before\n" {
		t.Errorf("what one writes, another reads: %q", r.stdout)
	}
	if r := shell(t, first, "cat kept"); r.stdout != "after\n" {
		t.Errorf("the first one reads %q", r.stdout)
	}
	counts.Signal(9)
	if r, err := counts.Wait(); r.Signal != 9 || err != nil || out.String() != "counts\n" {
		t.Errorf("the call in the first one: %+v, %v: %q", r, err, out.String())
	}
}

func (s suite) snapshotIndependent(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	k := kept(t, b)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	one := from(t, k)
	again := kept(t, one)
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	alive(t, one)
	if c, err := k.Create(t.Context()); err == nil {
		c.Close()
		t.Error("a snapshot that was thrown away can be gone on from")
	}
	alive(t, from(t, again))
}

func (s suite) snapshotPaused(t *testing.T) {
	b, p := s.pausable(t, sandbox.Spec{})
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := kept(t, b)
	if err := b.Ping(t.Context()); !errors.Is(err, sandbox.ErrPaused) {
		t.Errorf("it does not stay paused: %v", err)
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive(t, b)
	alive(t, from(t, k))
}

func (s suite) snapshotClosed(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if k, err := b.(sandbox.Snapshotter).Snapshot(t.Context()); err == nil {
		k.Close()
		t.Error("what is gone was kept")
	}
}

// memories checks that a program has the memory of its snapshot, also in snapshots of sandboxes
// that were made from one.
func (s suite) memories(t *testing.T) {
	first := s.probed(t, sandbox.Spec{})
	if _, err := first.Exec(t.Context(),
		sandbox.Command{Argv: []string{probePath, "remember", "8"}, Timeout: -1}); err != nil {
		t.Fatal(err)
	}
	asked := func(b sandbox.Sandbox, what string) string {
		t.Helper()
		r := shell(t, b,
			"echo "+what+" >ask.new; mv ask.new ask; until [ -e answer ]; do sleep 0.01; done; cat answer; rm answer")
		if len(r.stdout) != 17 {
			t.Fatalf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
		}
		return r.stdout
	}
	began := asked(first, "say")
	k := kept(t, first)
	one, other := from(t, k), from(t, k)
	changed := asked(one, "change")
	again := kept(t, one)
	two := from(t, again)
	once := asked(two, "say")
	twice := asked(two, "change")
	for _, is := range []struct {
		what string
		b    sandbox.Sandbox
		want string
	}{
		{"the first", first, began}, {"one that went on from it", other, began}, {"one that changed", one, changed},
		{"one that went on from that, and changed", two, twice},
		{"one of a third generation", from(t, kept(t, two)), twice},
		{"one more of the first snapshot", from(t, k), began}, {"one more of the second", from(t, again), changed},
	} {
		if got := asked(is.b, "say"); got != is.want {
			t.Errorf("%s remembers something else", is.what)
		}
	}
	if once != changed || changed == began || twice == changed {
		t.Errorf("at first %s, changed %s, in the next generation %s, changed %s", began, changed, once, twice)
	}
}
