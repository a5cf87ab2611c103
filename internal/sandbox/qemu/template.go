//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/rootfs"
)

// frozen is a machine at one moment: what its devices are, and its memory. That
// is what changed on the memory of a template, or all of it, or with neither in
// state as well.
type frozen struct {
	build   build
	state   *os.File
	base    *os.File // memory that nobody changes any more, and that others go on from too; or nil
	changed *pages   // what there is besides; or nil
	of      *template
}

// warmings are programs that a template runs before it is kept, so that what
// they read is in memory when they run for the first time. Missing ones are no
// mistake.
var warmings = [][]string{{"sh", "-c", "true"}, {"python3", "-c", "import json, subprocess"}, {"node", "-e", "0"}}

const warmWait = 20 * time.Second // for each of them

func (f frozen) close() (err error) {
	files := []*os.File{f.state, f.base}
	if f.changed != nil {
		files = append(files, f.changed.file)
	}
	for _, file := range files {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	return err
}

// freeze boots a machine, has it run what others will run first, and keeps it.
func (d *Driver) freeze(ctx context.Context, k kind) (frozen, error) {
	b, err := d.build(ctx, k, nil)
	if err != nil {
		return frozen{}, err
	}
	limits, err := rootfs.Held(sandbox.Limits{MemoryMiB: k.memoryMiB, VCPUs: k.vcpus})
	if err != nil {
		return frozen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootWait)
	defer cancel()
	plan := planOf(limits, nil, 0, k.strict)
	plan.Texts = k.texts
	m, l, err := d.boot(ctx, b, plan)
	if err != nil {
		return frozen{}, err
	}
	f := frozen{build: b}
	defer l.Close()
	err = d.keep(ctx, m, l, &f)
	// Nothing may write to the memory any more, also not a machine that code
	// broke out of: to seal it is to find out that none has it.
	err = errors.Join(err, m.end())
	if err == nil {
		err = seal(f.base)
	}
	if err != nil {
		return frozen{}, errors.Join(err, f.close())
	}
	return f, nil
}

// keep has a machine that booted run what others will run first, and stops it.
func (d *Driver) keep(ctx context.Context, m *machine, l *agentclient.Link, f *frozen) (err error) {
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
	if f.base, err = another(m.memory); err != nil {
		return err
	}
	f.state, err = m.orders.save(ctx)
	return err
}

// boot starts a machine from the beginning, and waits for its agent to have
// made the place.
func (d *Driver) boot(ctx context.Context, b build, plan agentprotocol.Plan) (*machine, *agentclient.Link, error) {
	memory, err := b.memory()
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close() // the machine has it
	m, err := d.launch(ctx, b, memory, true, false)
	if err != nil {
		return nil, nil, err
	}
	l := agentclient.New(m.agent, sandbox.Defaults(), nil)
	if err := l.Setup(ctx, plan); err != nil {
		err = d.explain(m, fmt.Errorf("the machine did not boot: %w", err))
		l.Close()
		return nil, nil, errors.Join(err, m.end())
	}
	return m, l, nil
}

// memory is empty memory for a machine.
func (b build) memory() (*os.File, error) { return memoryFile("memory", int64(b.memoryMiB)<<20) }

// thaw has a machine go on from a moment that was kept.
func (d *Driver) thaw(ctx context.Context, f frozen) (*machine, *agentclient.Link, error) {
	m, err := d.awaken(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	state, err := again(f.state)
	if err == nil {
		err = m.orders.receive(ctx, state)
		state.Close()
	}
	if err == nil {
		err = m.orders.order(ctx, "cont", nil)
	}
	l := agentclient.New(m.agent, sandbox.Defaults(), nil)
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

// awaken starts a machine with the memory of a moment that was kept, as far as
// that is known apart from its devices.
func (d *Driver) awaken(ctx context.Context, f frozen) (m *machine, err error) {
	if f.base == nil {
		memory, err := f.build.memory()
		if err != nil {
			return nil, err
		}
		defer memory.Close()
		if f.changed != nil {
			if err := f.changed.copyIn(memory); err != nil {
				return nil, err
			}
		}
		return d.launch(ctx, f.build, memory, true, true)
	}
	if m, err = d.launch(ctx, f.build, f.base, false, true); err != nil || f.changed == nil {
		return m, err
	}
	v, err := m.look()
	if err == nil {
		err = f.changed.copyIn(v)
		v.close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("give a machine its memory: %w", err), m.agent.Close(), m.end())
	}
	return m, nil
}
