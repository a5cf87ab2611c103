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

// savedState is the saved state of a machine: its devices and its memory. The memory is changed pages on top of a
// template's memory, or all pages, or it is contained in state.
type savedState struct {
	build    build
	state    *os.File
	base     *os.File // sealed memory that other machines share; or nil
	changed  *pages   // pages that differ from base, or all pages if base is nil; or nil
	template *template
}

// warmUpCommands are programs that a template runs before it is saved, so that the files they read are in its
// memory. Missing programs are not an error.
var warmUpCommands = [][]string{{"sh", "-c", "true"}, {"python3", "-c", "import json, subprocess"}, {"node", "-e", "0"}}

const warmUpWait = 20 * time.Second // for each of them

func (f savedState) closeState() (err error) {
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

// makeTemplate boots a machine, runs the warmings, and saves its state.
func (d *Driver) makeTemplate(ctx context.Context, k kind) (savedState, error) {
	b, err := d.build(ctx, k, nil)
	if err != nil {
		return savedState{}, err
	}
	limits, err := rootfs.InForce(sandbox.Limits{MemoryMiB: k.memoryMiB, VCPUs: k.vcpus})
	if err != nil {
		return savedState{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootWait)
	defer cancel()
	plan := planOf(limits, nil, 0, k.strict)
	plan.Files = k.texts
	m, l, err := d.boot(ctx, b, plan)
	if err != nil {
		return savedState{}, err
	}
	f := savedState{build: b}
	defer l.Close()
	err = d.saveTemplate(ctx, m, l, &f)
	// Nothing may write to the memory from now on, not even a machine that the code broke out of. Sealing
	// succeeds only if no process has it mapped writable.
	err = errors.Join(err, m.endMachine())
	if err == nil {
		err = seal(f.base)
	}
	if err != nil {
		return savedState{}, errors.Join(err, f.closeState())
	}
	return f, nil
}

// saveTemplate runs the warmings in a machine that has booted, pauses it and saves its state.
func (d *Driver) saveTemplate(ctx context.Context, m *machine, l *agentclient.Client, f *savedState) (err error) {
	for _, argv := range warmUpCommands {
		p, err := l.Exec(ctx, sandbox.Command{Argv: argv, Timeout: warmUpWait})
		if err == nil {
			p.Wait()
		}
	}
	if err := l.Quiesce(ctx); err != nil {
		return err
	}
	if err := m.monitor.command(ctx, "stop", nil); err != nil {
		return err
	}
	if f.base, err = duplicate(m.memory); err != nil {
		return err
	}
	f.state, err = m.monitor.saveDevices(ctx)
	return err
}

// boot boots a machine and waits until its agent has set up the sandbox.
func (d *Driver) boot(ctx context.Context, b build, plan agentprotocol.Plan) (*machine, *agentclient.Client, error) {
	memory, err := b.memory()
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close() // the machine has a duplicate
	m, err := d.launch(ctx, b, memory, true, false)
	if err != nil {
		return nil, nil, err
	}
	l := agentclient.New(m.agent, sandbox.Defaults(), nil)
	if err := l.Setup(ctx, plan); err != nil {
		err = d.withConsole(m, fmt.Errorf("the machine did not boot: %w", err))
		l.Close()
		return nil, nil, errors.Join(err, m.endMachine())
	}
	return m, l, nil
}

// memory creates empty memory for a machine.
func (b build) memory() (*os.File, error) { return memoryFile("memory", int64(b.memoryMiB)<<20) }

// restoreMachine restores a machine from a saved state.
func (d *Driver) restoreMachine(ctx context.Context, f savedState) (*machine, *agentclient.Client, error) {
	m, err := d.startWithMemory(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	state, err := reopen(f.state)
	if err == nil {
		err = m.monitor.load(ctx, state)
		state.Close()
	}
	if err == nil {
		err = m.monitor.command(ctx, "cont", nil)
	}
	l := agentclient.New(m.agent, sandbox.Defaults(), nil)
	if err == nil {
		err = l.Renew(ctx)
	}
	if err != nil {
		err = d.withConsole(m, fmt.Errorf("the machine did not continue: %w", err))
		l.Close()
		return nil, nil, errors.Join(err, m.endMachine())
	}
	return m, l, nil
}

// startWithMemory starts a machine with the memory of a saved state, but without its devices.
func (d *Driver) startWithMemory(ctx context.Context, f savedState) (m *machine, err error) {
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
	v, err := m.openView()
	if err == nil {
		err = f.changed.copyIn(v)
		v.closeView()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("restore the memory of a machine: %w", err), m.agent.Close(), m.endMachine())
	}
	return m, nil
}
