//go:build unix

package proc

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// transcript records what was written to it.
type transcript struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *transcript) has(s string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.b.String(), s)
}

func typeIn(t *testing.T, p *Process, s string) {
	t.Helper()
	if n, err := p.Type(t.Context(), []byte(s)); err != nil || n != len(s) {
		t.Fatalf("typed %d of %q: %v", n, s, err)
	}
}

func TestATerminalIsOne(t *testing.T) {
	out := &transcript{}
	spec := shell("tty; echo ready; while stty size; read -r x; do echo got $x; done; echo end of input")
	spec.Terminal, spec.Stdout, spec.Whole = &Size{Cols: 91, Rows: 31}, out, true
	p := start(t, t.Context(), spec)
	eventually(t, "it is ready", func() bool { return out.has("31 91") && out.has("ready") })
	typeIn(t, p, "a b\n")
	eventually(t, "it answers", func() bool { return out.has("got a b") })
	if err := p.Resize(Size{Cols: 70, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	typeIn(t, p, "c\n")
	eventually(t, "it sees the new size", func() bool { return out.has("20 70") })
	if err := p.CloseInput(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := wait(t, p); s.Code != 0 || !out.has("end of input") {
		t.Errorf("%+v", s)
	}
	if _, err := p.Type(t.Context(), []byte("x")); !errors.Is(err, ErrNoInput) {
		t.Errorf("typed after the end: %v", err)
	}
}

func TestInputStaysOpenUntilItIsClosed(t *testing.T) {
	out := &transcript{}
	p := start(t, t.Context(), Spec{Path: "cat", Stdout: out, Input: true})
	for _, s := range []string{"one\n", "two\n"} {
		typeIn(t, p, s)
		eventually(t, "it is back", func() bool { return out.has(s) })
	}
	if err := p.CloseInput(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := wait(t, p); s.Code != 0 || s.Stopped != nil {
		t.Errorf("%+v", s)
	}
	if err := p.CloseInput(t.Context()); !errors.Is(err, ErrNoInput) {
		t.Errorf("closed twice: %v", err)
	}
	plain := start(t, t.Context(), shell("exit 0"))
	if _, err := plain.Type(t.Context(), []byte("x")); !errors.Is(err, ErrNoInput) {
		t.Errorf("typed into nothing: %v", err)
	}
}

// Type does not wait forever, and not longer than its context, for a child that does not read.
func TestTypingIntoTheDeafEnds(t *testing.T) {
	p := start(t, t.Context(), Spec{Path: "sleep", Args: []string{"1000"}, Input: true})
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		n, err := p.Type(ctx, make([]byte, 1<<20))
		cancel()
		if n == 0 && errors.Is(err, context.DeadlineExceeded) && wait < time.Minute {
			continue // the context had ended before the first byte
		}
		if !errors.Is(err, context.DeadlineExceeded) || n == 0 || n == 1<<20 {
			t.Errorf("typed %d: %v", n, err)
		}
		return
	}
}

func TestTerminalsLeaveNothingOpen(t *testing.T) {
	before := openFiles(t)
	for range 20 {
		spec := shell("exit 0")
		spec.Terminal = &Size{Cols: 80, Rows: 24}
		wait(t, start(t, t.Context(), spec))
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open, now %d", before, after)
	}
	spec := Spec{Path: "no-such-program", Terminal: &Size{Cols: 80, Rows: 24}}
	if _, err := Start(t.Context(), spec); err == nil {
		t.Error("it started")
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open, now %d", before, after)
	}
}

// An interactive shell ignores the request to end, but not a hangup.
func TestAShellInATerminalEndsWhenAsked(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	out := &transcript{}
	p := start(t, t.Context(), Spec{
		Path: "bash", Args: []string{"--norc", "-i"}, Env: append(BaseEnv(), "PS1=ready> ", "HISTFILE="),
		Terminal: &Size{Cols: 80, Rows: 24}, Stdout: out, Grace: time.Hour, Whole: true,
	})
	eventually(t, "it is ready", func() bool { return out.has("ready>") })
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := wait(t, p); s.Signal == "killed" {
		t.Errorf("%+v", s)
	}
}
