//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/link"
	"gatehouse/internal/sandbox/place"
	"gatehouse/internal/sandbox/wire"

	"golang.org/x/sys/unix"
)

// frozen is a machine at one moment: what its devices are, and its memory.
type frozen struct {
	build  build
	state  *os.File
	memory *os.File // nil when the memory is in state too
}

// warmings are programs that a template runs before it is kept, so that what
// they read is in memory when they run for the first time. Missing ones are no
// mistake.
var warmings = [][]string{{"sh", "-c", "true"}, {"python3", "-c", "import json, subprocess"}, {"node", "-e", "0"}}

const warmWait = 20 * time.Second // for each of them

func (f frozen) close() error {
	err := f.state.Close()
	if f.memory != nil {
		err = errors.Join(err, f.memory.Close())
	}
	return err
}

// freeze boots a machine, has it run what others will run first, and keeps it.
func (d *Driver) freeze(ctx context.Context, k kind) (frozen, error) {
	b, err := d.build(ctx, k, nil)
	if err != nil {
		return frozen{}, err
	}
	limits, err := place.Held(sandbox.Limits{MemoryMiB: k.memoryMiB, VCPUs: k.vcpus})
	if err != nil {
		return frozen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootWait)
	defer cancel()
	plan := planOf(limits, nil, 0, k.strict)
	plan.Texts = k.texts
	m, l, memory, err := d.boot(ctx, b, plan)
	if err != nil {
		return frozen{}, err
	}
	f := frozen{build: b, memory: memory}
	defer l.Close()
	err = d.keep(ctx, m, l, &f)
	// Nothing may write to the memory any more, also not a machine that code
	// broke out of: to seal it is to find out that none has it.
	err = errors.Join(err, m.end())
	if err == nil {
		_, err = unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		memory.Close()
		if f.state != nil {
			f.state.Close()
		}
		return frozen{}, err
	}
	return f, nil
}

func (d *Driver) keep(ctx context.Context, m *machine, l *link.Link, f *frozen) (err error) {
	for _, argv := range warmings {
		p, err := l.Exec(ctx, sandbox.Command{Argv: argv, Timeout: warmWait})
		if err == nil {
			p.Wait()
		}
	}
	if err := l.Still(ctx); err != nil {
		return err
	}
	if err := m.orders.order(ctx, "stop", nil); err != nil {
		return err
	}
	if f.state, err = memoryFile("state", 0); err != nil {
		return err
	}
	return m.orders.move(ctx, "migrate", f.state, true)
}

// boot starts a machine from the beginning, and waits for its agent to have
// made the place.
func (d *Driver) boot(ctx context.Context, b build, plan wire.Plan) (*machine, *link.Link, *os.File, error) {
	memory, err := memoryFile("memory", int64(b.memoryMiB)<<20)
	if err != nil {
		return nil, nil, nil, err
	}
	m, err := d.launch(ctx, b, memory, true, false)
	if err != nil {
		return nil, nil, nil, errors.Join(err, memory.Close())
	}
	l := link.New(m.agent, sandbox.Defaults(), nil)
	if err := l.Setup(ctx, plan); err != nil {
		err = d.explain(m, fmt.Errorf("the machine did not boot: %w", err))
		l.Close()
		return nil, nil, nil, errors.Join(err, m.end(), memory.Close())
	}
	return m, l, memory, nil
}

// thaw has a machine go on from a moment that was kept.
func (d *Driver) thaw(ctx context.Context, f frozen) (*machine, *link.Link, error) {
	memory := f.memory
	if memory == nil {
		var err error
		if memory, err = memoryFile("memory", int64(f.build.memoryMiB)<<20); err != nil {
			return nil, nil, err
		}
		defer memory.Close()
	}
	m, err := d.launch(ctx, f.build, memory, f.memory == nil, true)
	if err != nil {
		return nil, nil, err
	}
	state, err := again(f.state)
	if err == nil {
		err = m.orders.move(ctx, "migrate-incoming", state, f.memory != nil)
		state.Close()
	}
	if err == nil {
		err = m.orders.order(ctx, "cont", nil)
	}
	l := link.New(m.agent, sandbox.Defaults(), nil)
	if err == nil {
		err = l.Renew(ctx)
	}
	if err != nil {
		err = d.explain(m, fmt.Errorf("the machine did not go on: %w", err))
		l.Close()
		return nil, nil, errors.Join(err, m.end())
	}
	return m, l, nil
}
