package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
)

// ours measures sandboxes in this process.
func ours(ctx context.Context, s *sheet, n int) error {
	cold, warm := newManager(0), newManager(3)
	defer cold.Close()
	defer warm.Close()
	warm.Serve()
	for range n {
		if err := errors.Join(coldRound(ctx, s, cold), warmRound(ctx, s, warm)); err != nil {
			return err
		}
	}
	return nil
}

func coldRound(ctx context.Context, s *sheet, m *manager.Manager) error {
	var b *manager.Box
	began := time.Now()
	if err := s.row("cold create", "p95 18").timed(func() (err error) {
		b, err = m.Create(ctx, "bench", manager.Spec{})
		return err
	}); err != nil {
		return err
	}
	if err := python(ctx, b); err != nil {
		return err
	}
	whole := s.row("cold create and first Python", "")
	whole.took = append(whole.took, time.Since(began))
	live := func(row *row, f func() error) (err error) {
		for range 5 {
			err = errors.Join(err, row.timed(f))
		}
		return err
	}
	return errors.Join(
		live(s.row("command in a live sandbox (true)", ""), func() error {
			_, err := b.Run(ctx, sandbox.Command{Argv: []string{"true"}})
			return err
		}),
		live(
			s.row("Python in a live sandbox, a process of its own", "median 3"),
			func() error { return python(ctx, b) },
		),
		stateful(ctx, s, b),
		s.row("destroy, with a Python that waits and a context", "p95 2").
			timed(func() error { return m.Destroy("bench", b.ID) }),
	)
}

// stateful begins a context and goes on in it; the first piece has to wait for
// its interpreter.
func stateful(ctx context.Context, s *sheet, b *manager.Box) error {
	c, err := b.NewContext(interpreter.Python)
	if err != nil {
		return err
	}
	piece := func() error {
		return printed(func(code interpreter.Code) (interpreter.Result, error) { return c.Run(ctx, code) })
	}
	err = s.row("Python in a context, the first", "").timed(piece)
	for range 20 {
		err = errors.Join(err, s.row("Python in a context", "0.2").timed(piece))
	}
	return err
}

// warmRound waits until the pool has what it shall have: how long that takes
// is not what a claim costs.
func warmRound(ctx context.Context, s *sheet, m *manager.Manager) error {
	for {
		if p, _ := m.Pool(); p.Waiting >= 3 {
			break
		} else if p.Reason != "" {
			return errors.New(p.Reason)
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond)
	var b *manager.Box
	began := time.Now()
	if err := s.row("claim from the pool", "p95 2").timed(func() (err error) {
		b, err = m.Create(ctx, "bench", manager.Spec{})
		return err
	}); err != nil {
		return err
	}
	if !b.Warm {
		return errors.New("a claim was not met from the pool")
	}
	if err := python(ctx, b); err != nil {
		return err
	}
	whole := s.row("claim and first Python", "p95 5")
	whole.took = append(whole.took, time.Since(began))
	return s.row("destroy, with a Python that waits", "p95 2").timed(func() error { return m.Destroy("bench", b.ID) })
}

func python(ctx context.Context, b *manager.Box) error {
	return printed(
		func(code interpreter.Code) (interpreter.Result, error) { return b.Code(ctx, interpreter.Python, code) },
	)
}

// printed checks that code did what it should.
func printed(run func(interpreter.Code) (interpreter.Result, error)) error {
	var out bytes.Buffer
	r, err := run(interpreter.Code{Source: "print(6 * 7)", Stdout: &out, Stderr: &out})
	if err == nil && (r.Outcome != sandbox.OK || out.String() != "42\n") {
		err = fmt.Errorf("%s: %q", r.Outcome, out.String())
	}
	return err
}

// crowded has many sandboxes alive at once and tells how fast they came and
// what they take.
func crowded(ctx context.Context, d sandbox.Driver, many int) (string, error) {
	began := time.Now()
	type made struct {
		s   sandbox.Sandbox
		err error
	}
	all := make(chan made)
	next := make(chan bool)
	go func() {
		defer close(next)
		for range many {
			next <- true
		}
	}()
	for range 4 {
		go func() {
			for range next {
				s, err := d.Create(ctx, sandbox.Spec{})
				all <- made{s, err}
			}
		}()
	}
	var boxes []sandbox.Sandbox
	var failed error
	for range many {
		m := <-all
		if failed = errors.Join(failed, m.err); m.err == nil {
			boxes = append(boxes, m.s)
		}
	}
	took := time.Since(began)
	memory := agentsMemory()
	for _, b := range boxes {
		failed = errors.Join(failed, b.Close())
	}
	return fmt.Sprintf(
		"%d alive at once: made at %.0f a second, their agents take %d MiB together (bars: "+
			"200/s without control groups of version 1, 200 MiB).",
		len(boxes),
		float64(many)/took.Seconds(),
		memory>>20,
	), failed
}

// agentsMemory is the proportional memory of this process's children, in
// bytes.
func agentsMemory() (sum int64) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for pid := range strings.FieldsSeq(string(b)) {
			rollup, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup")
			for line := range strings.Lines(string(rollup)) {
				if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
					n, _ := strconv.ParseInt(f[1], 10, 64)
					sum += n << 10
				}
			}
		}
	}
	return sum
}
