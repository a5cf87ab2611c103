//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"
)

// instance is one sandbox. Most of its methods are the client's.
type instance struct {
	*agentclient.Client
	driver   *Driver
	machine  *machine
	egress   *egress.Server
	build    build
	strict   bool
	template *template // the template that it started from; nil if it booted

	closed func() error
	ending chan struct{} // closed when Close starts
	gone   chan struct{}

	settings rootfs.Settings // also locked while the machine is paused, resumed or saved
	paused   bool            // guarded by settings
}

// planOf returns the plan for a root file system that is set up.
func planOf(limits sandbox.Limits, env []string, port int64, strict bool) agentprotocol.Plan {
	p := rootfs.Bounds(env, limits, port, true)
	p.Hostname, p.Prebuilt, p.UID, p.GID = "sandbox", true, rootfs.CodeID, rootfs.CodeID
	p.Strict = strict
	p.MemoryBytes, p.VCPUs = int64(limits.MemoryMiB)<<20, int64(limits.VCPUs)
	return p
}

// newInstance returns a box without a machine.
func (d *Driver) newInstance(limits sandbox.Limits, layout, env []string, strict bool) *instance {
	b := &instance{driver: d, strict: strict}
	b.settings.Limits, b.settings.ImageEnv, b.settings.Env = limits, layout, env
	b.settings.Bounds = func(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
		return planOf(limits, env, port, strict)
	}
	return b
}

// bootInstance boots a machine for the sandbox.
func (d *Driver) bootInstance(ctx context.Context, b *instance, k kind, trees []sandbox.Tree) error {
	ctx, cancel := context.WithTimeout(ctx, bootWait)
	defer cancel()
	var err error
	if b.build, err = d.build(ctx, k, trees); err != nil {
		return err
	}
	plan := b.settings.Plan()
	plan.Files = k.texts
	if b.machine, b.Client, err = d.boot(ctx, b.build, plan); err != nil {
		return err
	}
	if err := b.Client.Renew(ctx); err != nil { // during boot the clock has whole seconds only
		b.Client.Close()
		return errors.Join(err, b.machine.endMachine())
	}
	return b.activate(ctx)
}

// restoreInstance restores a machine for the sandbox.
func (d *Driver) restoreInstance(ctx context.Context, b *instance, from savedState) error {
	ctx, cancel := context.WithTimeout(ctx, restoreWait)
	defer cancel()
	b.build, b.template = from.build, from.template
	var err error
	if b.machine, b.Client, err = d.restoreMachine(ctx, from); err != nil {
		return err
	}
	return b.activate(ctx)
}

// activate applies the sandbox's limits to a running machine and registers the sandbox.
func (b *instance) activate(ctx context.Context) error {
	b.ending, b.gone = make(chan struct{}), make(chan struct{})
	b.closed = sync.OnceValue(b.end)
	b.egress = egress.NewOver(b.Listen, proxy.Options{})
	err := b.Client.Adjust(ctx, b.settings.Plan(), b.settings.Limits)
	if err == nil {
		err = b.driver.instances.Add(b)
	}
	if err != nil {
		return errors.Join(err, b.Close())
	}
	go b.watch()
	return nil
}

// watch closes a sandbox whose machine or agent has ended, and logs the end of the machine's console. It also
// closes one whose monitor connection is lost, because it could no longer be paused or resumed.
func (b *instance) watch() {
	why := errors.New("its agent ended")
	select {
	case <-b.gone:
		return
	case <-b.Client.Done():
	case <-b.machine.ended:
	case <-b.machine.monitor.gone:
		why = b.machine.monitor.err
	}
	select {
	case <-b.ending:
	default:
		b.driver.log.Warn("a virtual machine ended unexpectedly", "error", b.driver.withConsole(b.machine, why))
	}
	b.Close()
}

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close implements sandbox.Sandbox.
func (b *instance) Close() error { return b.closed() }

func (b *instance) end() error {
	defer close(b.gone)
	close(b.ending)
	b.Client.Close()
	err := b.machine.endMachine()
	b.egress.Close() // after the agent and the machine, whose answers it may wait for
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust implements sandbox.Adjustable. Memory and processors are bounded by those of the machine.
func (b *instance) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.settings.Adjust(ctx, b.Client, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		if err := b.alive(); err != nil {
			return l, err
		}
		if b.paused {
			return l, sandbox.ErrPaused
		}
		if most := b.build.memoryMiB - overheadMiB; l.MemoryMiB > most {
			return l, fmt.Errorf("the machine has %d MiB of memory for the code and cannot be given %d MiB", most,
				l.MemoryMiB)
		}
		l.VCPUs = min(l.VCPUs, b.build.vcpus)
		return l, nil
	})
}

// Usage implements sandbox.UsageReporter: the use of the code and the agent, without the machine's kernel.
func (b *instance) Usage(ctx context.Context) (sandbox.Usage, error) { return b.GroupUsage(ctx) }

// OOMKills asks the machine's kernel, because the host cannot see its OOM kills.
func (b *instance) OOMKills() int { return b.GroupKills() }

// Assign gives the machine the part of the processors that a principal has.
func (b *instance) Assign(principal string) error { return b.machine.group.Assign(principal) }

// SetNetwork implements sandbox.Networked.
func (b *instance) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.settings.SetNetwork(ctx, b.Client, b.egress, n)
}

var (
	_ sandbox.Files         = (*instance)(nil)
	_ sandbox.Networked     = (*instance)(nil)
	_ sandbox.Archive       = (*instance)(nil)
	_ sandbox.Dialer        = (*instance)(nil)
	_ sandbox.Adjustable    = (*instance)(nil)
	_ sandbox.UsageReporter = (*instance)(nil)
	_ sandbox.Pausable      = (*instance)(nil)
	_ sandbox.Snapshotter   = (*instance)(nil)
)
