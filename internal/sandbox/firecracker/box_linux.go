//go:build amd64 || arm64

package firecracker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/guest"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"
)

const (
	systemMiB    = 96 // memory of a machine for its kernel and the agent, beside what the code has
	outerMiB     = 64 // memory of the process, beside the machine's
	outerThreads = 32 // of the process, its keeper and the jailer, beside the processors
)

// box is one sandbox. What it can do is the link's.
type box struct {
	*agentclient.Link
	driver  *Driver
	machine *machine
	jail    *jail
	door    *egress.Door
	slot    int
	group   *cgroup.Group
	size    size
	made    []func() error // what undoes each step of its making

	closed func() error
	gone   chan struct{}

	asked  rootfs.Asked // locked while the machine is stopped or kept, too
	paused bool         // under the same lock, as what follows
	reset  bool         // the agent's channel is lost, since a snapshot was taken
}

// size is what cannot be changed any more of a machine.
type size struct {
	memoryMiB, vcpus int
	strict           bool
	disks            []string // on the shelf
}

// raise makes a sandbox as far as that its agent is connected: a jail with these
// files, by name, and a machine in it that begin starts. What the caller holds on
// the shelf for it is the sandbox's from here on. What it made before it failed is
// undone.
func (d *Driver) raise(ctx context.Context, s size, files map[string]string, held []string, begin func(*machine) error) (*box, net.Conn, error) {
	b := &box{driver: d, size: s, gone: make(chan struct{})}
	b.made = append(b.made, func() error { d.shelf.give(held); return nil })
	b.asked.Bounds = bounds
	conn, err := b.rise(ctx, files, begin)
	if err != nil {
		b.undo()
		return nil, nil, err
	}
	return b, conn, nil
}

func (b *box) rise(ctx context.Context, files map[string]string, begin func(*machine) error) (_ net.Conn, err error) {
	d := b.driver
	if b.slot, err = d.users.Take(); err != nil {
		return nil, err
	}
	b.made = append(b.made, func() error { d.users.Give(b.slot); return nil })
	if b.group, err = d.groups.New(b.size.outer()); err != nil {
		return nil, err
	}
	b.made = append(b.made, b.group.Remove)
	uid, gid, _ := d.users.Range(b.slot)
	if b.jail, err = newJail(d.folder, filepath.Base(d.parts.vmm.path), "gatehouse-"+strings.ToLower(rand.Text()), uid, gid); err != nil {
		return nil, err
	}
	b.made = append(b.made, b.jail.remove)
	if err := b.furnish(files); err != nil {
		return nil, err
	}
	fileSize := int64(b.size.memoryMiB+systemMiB+outerMiB) << 20 // of a snapshot's memory
	if b.machine, err = launch(ctx, d.parts, b.jail, fileSize, b.group); err != nil {
		return nil, err
	}
	b.made = append(b.made, func() error { b.machine.end(); return nil })
	if err := begin(b.machine); err != nil {
		return nil, err
	}
	return b.machine.agent(ctx)
}

// furnish puts into the jail what the machine needs.
func (b *box) furnish(files map[string]string) error {
	for i, from := range b.size.disks {
		if err := b.jail.add(from, disk(i)); err != nil {
			return err
		}
	}
	for name, from := range files {
		if err := b.jail.add(from, name); err != nil {
			return err
		}
	}
	return nil
}

// undo ends what there is of it, the last first.
func (b *box) undo() (err error) {
	for _, u := range slices.Backward(b.made) {
		err = errors.Join(err, u())
	}
	return err
}

// outer is what the process may use.
func (s size) outer() sandbox.Limits {
	return sandbox.Limits{MemoryMiB: s.memoryMiB + systemMiB + outerMiB, VCPUs: s.vcpus, Processes: s.vcpus + outerThreads}
}

// make makes a sandbox of a machine that boots.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*box, error) {
	own, err := ofImage(spec.Image)
	if err != nil {
		return nil, err
	}
	files, err := d.files(ctx)
	held := slices.Collect(maps.Values(files))
	if err != nil {
		d.shelf.give(held)
		return nil, err
	}
	disks, arguments, err := d.disks(ctx, spec)
	held = append(held, disks...)
	if err != nil {
		d.shelf.give(held)
		return nil, err
	}
	s := size{memoryMiB: limits.MemoryMiB, vcpus: limits.VCPUs, strict: spec.Strict, disks: disks}
	b, conn, err := d.raise(ctx, s, files, held, func(m *machine) error {
		return m.boot(ctx, plan{vcpus: s.vcpus, memoryMiB: s.memoryMiB + systemMiB, arguments: arguments, disks: len(disks)})
	})
	if err != nil {
		return nil, err
	}
	b.asked.Limits, b.asked.Look, b.asked.Env = limits, own, spec.Env
	return b.live(conn, func() error { return b.Setup(ctx, b.plan()) })
}

// ofImage is the environment that an image's programs expect.
func ofImage(image *sandbox.Image) ([]string, error) {
	if image == nil {
		return nil, nil
	}
	look, err := rootfs.Of(sandbox.Spec{Image: image})
	return look.Env, err
}

// live makes a link of the channel to the agent, has first speak through it, and
// hands the sandbox out. One that fails is undone.
func (b *box) live(conn net.Conn, first func() error) (*box, error) {
	b.Link = agentclient.New(conn, b.asked.Limits, b.group.OOMKills)
	b.door = egress.Over(b.Link.Listen, proxy.Options{})
	err := first()
	if err != nil {
		err = b.machine.process.why(err)
	} else {
		b.closed = sync.OnceValue(b.end)
		err = b.driver.boxes.Add(b)
	}
	if err != nil {
		b.Link.Close()
		b.door.Close()
		b.undo()
		return nil, err
	}
	go func() {
		select {
		case <-b.Link.Done():
		case <-b.machine.process.ended:
		}
		b.Close()
	}()
	return b, nil
}

// files are what every machine begins with, by name in the jail. The caller holds
// what is given, with an error too.
func (d *Driver) files(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}
	for name, make := range map[string]func(context.Context) (string, error){kernelFile: d.system.Vmlinux, initrdFile: d.system.Initrd} {
		path, err := make(ctx)
		if err != nil {
			return files, err
		}
		if files[name], err = d.shelf.put(path); err != nil {
			return files, err
		}
	}
	return files, nil
}

// disks are what a machine shows, and what its kernel is told about them. The
// caller holds what is given, with an error too.
func (d *Driver) disks(ctx context.Context, spec sandbox.Spec) (disks []string, arguments string, err error) {
	boot := guest.Boot{Vsock: true}
	if boot.Root, err = d.system.Root(ctx, spec.Image); err != nil {
		return nil, "", err
	}
	paths := []string{boot.Root.Path}
	for _, t := range spec.Trees {
		shown, err := d.system.Tree(ctx, t.From)
		if err != nil {
			return nil, "", err
		}
		boot.Trees = append(boot.Trees, guest.Tree{Disk: shown, At: cmp.Or(t.To, t.From)})
		paths = append(paths, shown.Path)
	}
	for _, path := range paths {
		at, err := d.shelf.put(path)
		if err != nil {
			return disks, "", err
		}
		disks = append(disks, at)
	}
	arguments, err = boot.Arguments()
	return disks, arguments + " " + ofFirecracker, err
}

// ofFirecracker are arguments for the kernel of such a machine: there is no bus
// to look for devices on, and a restart ends it.
const ofFirecracker = "pci=off reboot=k"

// plan is what is left to say to the agent of a machine that has booted.
func (b *box) plan() agentprotocol.Plan {
	p := b.asked.Plan()
	p.Hostname, p.Made, p.UID, p.GID, p.Strict = "sandbox", true, rootfs.CodeID, rootfs.CodeID, b.size.strict
	return p
}

// bounds is the part of a plan that can be changed later. The machine's own
// kernel holds the limits.
func bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	p := rootfs.Bounds(env, limits, port, true)
	p.MemoryBytes, p.VCPUs = int64(limits.MemoryMiB)<<20, int64(limits.VCPUs)
	return p
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends everything in it.
func (b *box) Close() error { return b.closed() }

func (b *box) end() error {
	defer close(b.gone)
	b.Link.Close()
	err := b.undo()
	b.door.Close() // after what it may wait for: the agent, and an order to the machine
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust is that of sandbox.Adjustable. A machine does not grow.
func (b *box) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.asked.Adjust(ctx, b.Link, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		l.VCPUs = min(l.VCPUs, mostVCPUs)
		if b.paused {
			return l, sandbox.ErrPaused
		}
		if l.MemoryMiB > b.size.memoryMiB || l.VCPUs > b.size.vcpus {
			return l, fmt.Errorf("the machine has %d MiB for the code and %d processors, and does not grow", b.size.memoryMiB, b.size.vcpus)
		}
		return l, nil
	})
}

// OOMKills is what only the machine's own kernel knows.
func (b *box) OOMKills() int { return b.GroupKills() }

// Usage is that of sandbox.Measured: what the machine takes of the host, its
// kernel included. How many processes are in it only its kernel knows.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	select {
	case <-b.gone:
		return sandbox.Usage{}, sandbox.ErrClosed
	default:
	}
	b.asked.Lock()
	defer b.asked.Unlock()
	if b.paused {
		return sandbox.Usage{}, sandbox.ErrPaused
	}
	u := b.group.Usage()
	u.Processes, u.OOMKills = -1, -1
	var err error
	u.Disk, err = b.DiskUsed(ctx)
	return u, err
}

// SetNetwork is that of sandbox.Networked.
func (b *box) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.asked.SetNetwork(ctx, b.Link, b.door, n)
}

var (
	_ sandbox.Archive     = (*box)(nil)
	_ sandbox.Measured    = (*box)(nil)
	_ sandbox.Ported      = (*box)(nil)
	_ sandbox.Networked   = (*box)(nil)
	_ sandbox.Files       = (*box)(nil)
	_ sandbox.Adjustable  = (*box)(nil)
	_ sandbox.Pausable    = (*box)(nil)
	_ sandbox.Snapshotter = (*box)(nil)
)
