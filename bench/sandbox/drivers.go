package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
)

// drivers measures each driver there is, by its own sandboxes: how long one
// takes, cold and from a snapshot. One that does not work here says why.
func drivers(ctx context.Context, s *sheet, n int) error {
	cache, err := os.MkdirTemp("", "sandbox-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	settings := config.Default().Modules.Sandbox
	settings.Kernel, settings.KernelModules = os.Getenv(
		"GATEHOUSE_KERNEL",
	), os.Getenv(
		"GATEHOUSE_SANDBOX_KERNEL_MODULES",
	)
	for _, r := range app.SandboxDrivers(manager.DriverNames(), settings, cache, nil) {
		ids := 0
		m := manager.New(
			manager.Options{
				Ladder: []manager.LadderEntry{r},
				NoPool: true,
				NewID:  func(kind string) string { ids++; return fmt.Sprint(kind, "_", ids) },
			},
		)
		for i := range n + 1 {
			to := s
			if i == 0 { // what is made once is made now
				to = &sheet{}
			}
			if err := driverRound(ctx, to, m, r.Name); err != nil {
				s.row(r.Name, "").note = "not run: " + strings.ReplaceAll(err.Error(), "\n", " ")
				break
			}
		}
		if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}

func driverRound(ctx context.Context, s *sheet, m *manager.Manager, name string) (err error) {
	var b, again *manager.Box
	var kept *manager.Snapshot
	restored, destroyed := "", ""
	switch name {
	case "qemu":
		restored = "80" // a cold create goes on from a template
	case "namespaces":
		destroyed = "p95 2"
	}
	began := time.Now()
	if err := s.row(name+": cold create", restored).timed(func() error {
		b, err = m.Create(ctx, "bench", manager.Spec{})
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Destroy("bench", b.ID)) }()
	if err := python(ctx, b); err != nil {
		return err
	}
	first := s.row(name+": cold create and first Python", "")
	first.took = append(first.took, time.Since(began))
	if err := errors.Join(b.Pause(ctx), b.Resume(ctx)); err != nil {
		return err
	}
	if err := s.row(name+": pause and resume", "").timed(func() error {
		return errors.Join(b.Pause(ctx),
			b.Resume(ctx))
	}); err != nil {
		return err
	}
	if err := s.row(name+": snapshot", "").timed(func() error {
		kept, err = m.Snapshot(ctx, b, "")
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.RemoveSnapshot("bench", kept.ID)) }()
	if err := s.row(fmt.Sprintf("%s: of a snapshot (%s), to running", name, kept.Kept), restored).timed(func() error {
		again, err = m.Restore(ctx, "bench", kept.ID, manager.Spec{})
		return err
	}); err != nil {
		return err
	}
	if err := errors.Join(python(ctx, again), m.Destroy("bench", again.ID)); err != nil {
		return err
	}
	if again, err = m.Create(ctx, "bench", manager.Spec{}); err != nil {
		return err
	}
	return s.row(name+": destroy, nothing runs", destroyed).timed(func() error { return m.Destroy("bench", again.ID) })
}

// scripts measures JavaScript where a Node waits.
func scripts(ctx context.Context, s *sheet, n int) error {
	m := newManager(0)
	defer m.Close()
	b, err := m.Create(ctx, "bench", manager.Spec{})
	if err != nil {
		return err
	}
	run := func(code interpreter.Code) (interpreter.Result, error) {
		code.Source = "console.log(6 * 7)"
		return b.Code(ctx, interpreter.Node, code)
	}
	if err := s.row("JavaScript, the first", "").timed(func() error { return printed(run) }); err != nil {
		s.row("JavaScript, the first", "").note = "not run: " + strings.ReplaceAll(err.Error(), "\n", " ")
		return nil
	}
	for range n {
		time.Sleep(150 * time.Millisecond) // the next Node starts
		if err := s.row("JavaScript in a live sandbox, a process of its own", "").timed(func() error { return printed(run) }); err != nil {
			return err
		}
	}
	return nil
}
