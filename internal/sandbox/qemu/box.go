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

// box is one sandbox. What it can do is the link's.
type box struct {
	*agentclient.Link
	driver  *Driver
	machine *machine
	door    *egress.Door
	build   build
	strict  bool
	of      *template // whose memory it began with; nil when it booted

	closed func() error
	ending chan struct{} // closed when it is being closed
	gone   chan struct{}

	asked  rootfs.Asked // locked while the machine is stopped or goes on, too
	paused bool         // under the same lock
}

// planOf is what is said to the agent of a place that is made.
func planOf(limits sandbox.Limits, env []string, port int64, strict bool) agentprotocol.Plan {
	p := rootfs.Bounds(env, limits, port, true)
	p.Hostname, p.Made, p.UID, p.GID = "sandbox", true, rootfs.CodeID, rootfs.CodeID
	p.Strict = strict
	p.MemoryBytes, p.VCPUs = int64(limits.MemoryMiB)<<20, int64(limits.VCPUs)
	return p
}

// newBox is a box that has no machine yet.
func (d *Driver) newBox(limits sandbox.Limits, look, env []string, strict bool) *box {
	b := &box{driver: d, strict: strict}
	b.asked.Limits, b.asked.Look, b.asked.Env = limits, look, env
	b.asked.Bounds = func(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
		return planOf(limits, env, port, strict)
	}
	return b
}

// cold boots a machine of its own for the sandbox.
func (d *Driver) cold(ctx context.Context, b *box, k kind, trees []sandbox.Tree) error {
	ctx, cancel := context.WithTimeout(ctx, bootWait)
	defer cancel()
	var err error
	if b.build, err = d.build(ctx, k, trees); err != nil {
		return err
	}
	plan := b.asked.Plan()
	plan.Texts = k.texts
	if b.machine, b.Link, err = d.boot(ctx, b.build, plan); err != nil {
		return err
	}
	if err := b.Link.Renew(ctx); err != nil { // it went by a clock that knows no parts of a second
		b.Link.Close()
		return errors.Join(err, b.machine.end())
	}
	return b.begin(ctx)
}

// warm has the sandbox go on from a moment of another one.
func (d *Driver) warm(ctx context.Context, b *box, from frozen) error {
	ctx, cancel := context.WithTimeout(ctx, restoreWait)
	defer cancel()
	b.build, b.of = from.build, from.of
	var err error
	if b.machine, b.Link, err = d.thaw(ctx, from); err != nil {
		return err
	}
	return b.begin(ctx)
}

// begin has a machine that runs go by the limits of the sandbox.
func (b *box) begin(ctx context.Context) error {
	b.ending, b.gone = make(chan struct{}), make(chan struct{})
	b.closed = sync.OnceValue(b.end)
	b.door = egress.Over(b.Listen, proxy.Options{})
	err := b.Link.Adjust(ctx, b.asked.Plan(), b.asked.Limits)
	if err == nil {
		err = b.driver.boxes.Add(b)
	}
	if err != nil {
		return errors.Join(err, b.Close())
	}
	go b.watch()
	return nil
}

// watch sees to it that what ended by itself is closed, and says what the
// machine printed last. So is a machine that takes no orders any more: nobody
// could stop it or let it go on.
func (b *box) watch() {
	why := errors.New("its agent is gone")
	select {
	case <-b.gone:
		return
	case <-b.Link.Done():
	case <-b.machine.ended:
	case <-b.machine.orders.gone:
		why = b.machine.orders.err
	}
	select {
	case <-b.ending:
	default:
		b.driver.log.Warn("a virtual machine ended by itself", "error", b.driver.explain(b.machine, why))
	}
	b.Close()
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends everything in it.
func (b *box) Close() error { return b.closed() }

func (b *box) end() error {
	defer close(b.gone)
	close(b.ending)
	b.Link.Close()
	err := b.machine.end()
	b.door.Close() // after what it may wait for: the agent, and an order to the machine
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust is that of sandbox.Adjustable. Memory can be what the machine has, and
// there can be as many processors as it has.
func (b *box) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.asked.Adjust(ctx, b.Link, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		if err := b.alive(); err != nil {
			return l, err
		}
		if b.paused {
			return l, sandbox.ErrPaused
		}
		if most := b.build.memoryMiB - overheadMiB; l.MemoryMiB > most {
			return l, fmt.Errorf("the machine was made for %d MiB of memory, which cannot become %d any more", most, l.MemoryMiB)
		}
		l.VCPUs = min(l.VCPUs, b.build.vcpus)
		return l, nil
	})
}

// Usage is that of sandbox.Measured: what the code takes of the machine, and
// the agent with it. The machine's own kernel is not in it.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) { return b.GroupUsage(ctx) }

// OOMKills is what only the machine's own kernel knows.
func (b *box) OOMKills() int { return b.GroupKills() }

// SetNetwork is that of sandbox.Networked.
func (b *box) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.asked.SetNetwork(ctx, b.Link, b.door, n)
}

var (
	_ sandbox.Files       = (*box)(nil)
	_ sandbox.Networked   = (*box)(nil)
	_ sandbox.Archive     = (*box)(nil)
	_ sandbox.Ported      = (*box)(nil)
	_ sandbox.Adjustable  = (*box)(nil)
	_ sandbox.Measured    = (*box)(nil)
	_ sandbox.Pausable    = (*box)(nil)
	_ sandbox.Snapshotter = (*box)(nil)
)
