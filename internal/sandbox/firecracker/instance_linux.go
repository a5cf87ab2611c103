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
	systemMiB      = 96 // of a machine, for its kernel and the agent, in addition to the code's
	processMiB     = 64 // of the process, in addition to the machine's
	processThreads = 32 // of the process, the shell around it and the jailer, in addition to the processors
)

// instance is one sandbox. Most of its methods are the client's.
type instance struct {
	*agentclient.Client
	driver    *Driver
	machine   *machine
	jail      *jail
	egress    *egress.Server
	slot      int
	group     *cgroup.Group
	size      size
	undoSteps []func() error // functions that undo each completed step of its creation

	closed func() error
	gone   chan struct{}

	settings rootfs.Settings // also locked while the machine is paused or saved
	paused   bool            // guarded by settings, as reset is
	reset    bool            // the agent's channel is lost, because a snapshot was taken
}

// size is what cannot be changed in a machine.
type size struct {
	memoryMiB, vcpus int
	strict           bool
	disks            []string // paths in the file store
}

// startInstance creates a jail with these files, by name, and a machine in it that begin starts, and connects to the
// agent. The sandbox takes over the held files of the store. On an error everything is undone.
func (d *Driver) startInstance(ctx context.Context, s size, files map[string]string, held []string,
	begin func(*machine) error) (*instance, net.Conn, error) {
	b := &instance{driver: d, size: s, gone: make(chan struct{})}
	b.undoSteps = append(b.undoSteps, func() error { d.store.releaseFiles(held); return nil })
	b.settings.Bounds = bounds
	conn, err := b.start(ctx, files, begin)
	if err != nil {
		b.undo()
		return nil, nil, err
	}
	return b, conn, nil
}

func (b *instance) start(ctx context.Context, files map[string]string,
	begin func(*machine) error) (_ net.Conn, err error) {
	d := b.driver
	if b.slot, err = d.users.Acquire(); err != nil {
		return nil, err
	}
	b.undoSteps = append(b.undoSteps, func() error { d.users.Release(b.slot); return nil })
	if b.group, err = d.groups.New(b.size.hostLimits()); err != nil {
		return nil, err
	}
	b.undoSteps = append(b.undoSteps, b.group.Remove)
	uid, gid, _ := d.users.Range(b.slot)
	if b.jail, err = newJail(d.folder, filepath.Base(d.parts.vmm.path), "gatehouse-"+strings.ToLower(rand.Text()),
		uid, gid); err != nil {
		return nil, err
	}
	b.undoSteps = append(b.undoSteps, b.jail.removeJail)
	if err := b.linkFiles(files); err != nil {
		return nil, err
	}
	fileSize := int64(b.size.memoryMiB+systemMiB+processMiB) << 20 // of a snapshot's memory
	if b.machine, err = launch(ctx, d.parts, b.jail, fileSize, b.group); err != nil {
		return nil, err
	}
	b.undoSteps = append(b.undoSteps, func() error { b.machine.endMachine(); return nil })
	if err := begin(b.machine); err != nil {
		return nil, err
	}
	return b.machine.agent(ctx)
}

// linkFiles links into the jail what the machine requires.
func (b *instance) linkFiles(files map[string]string) error {
	for i, from := range b.size.disks {
		if err := b.jail.addFile(from, disk(i)); err != nil {
			return err
		}
	}
	for name, from := range files {
		if err := b.jail.addFile(from, name); err != nil {
			return err
		}
	}
	return nil
}

// undo releases what was created, in reverse order.
func (b *instance) undo() (err error) {
	for _, u := range slices.Backward(b.undoSteps) {
		err = errors.Join(err, u())
	}
	return err
}

// hostLimits returns the limits of the process on the host.
func (s size) hostLimits() sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB: s.memoryMiB + systemMiB + processMiB,
		VCPUs:     s.vcpus,
		Processes: s.vcpus + processThreads,
	}
}

// make makes a sandbox of a machine that boots.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*instance, error) {
	own, err := imageEnvironment(spec.Image)
	if err != nil {
		return nil, err
	}
	files, err := d.files(ctx)
	held := slices.Collect(maps.Values(files))
	if err != nil {
		d.store.releaseFiles(held)
		return nil, err
	}
	disks, arguments, err := d.disks(ctx, spec)
	held = append(held, disks...)
	if err != nil {
		d.store.releaseFiles(held)
		return nil, err
	}
	s := size{memoryMiB: limits.MemoryMiB, vcpus: limits.VCPUs, strict: spec.Strict, disks: disks}
	b, conn, err := d.startInstance(ctx, s, files, held, func(m *machine) error {
		return m.boot(ctx, plan{
			vcpus:     s.vcpus,
			memoryMiB: s.memoryMiB + systemMiB,
			arguments: arguments,
			disks:     len(disks),
		})
	})
	if err != nil {
		return nil, err
	}
	b.settings.Limits, b.settings.ImageEnv, b.settings.Env = limits, own, spec.Env
	return b.activate(conn, func() error { return b.Setup(ctx, b.plan()) })
}

// imageEnvironment returns the environment that an image's programs expect.
func imageEnvironment(image *sandbox.Image) ([]string, error) {
	if image == nil {
		return nil, nil
	}
	layout, err := rootfs.Of(sandbox.Spec{Image: image})
	return layout.Env, err
}

// activate makes a client for the agent's channel, calls first, and registers the sandbox. On an error everything
// is undone.
func (b *instance) activate(conn net.Conn, first func() error) (*instance, error) {
	b.Client = agentclient.New(conn, b.settings.Limits, b.group.OOMKills)
	b.egress = egress.NewOver(b.Client.Listen, proxy.Options{})
	err := first()
	if err != nil {
		err = b.machine.process.withOutput(err)
	} else {
		b.closed = sync.OnceValue(b.end)
		err = b.driver.instances.Add(b)
	}
	if err != nil {
		b.Client.Close()
		b.egress.Close()
		b.undo()
		return nil, err
	}
	go func() {
		select {
		case <-b.Client.Done():
		case <-b.machine.process.ended:
		}
		b.Close()
	}()
	return b, nil
}

// files returns the files that every machine boots, by name in the jail. The caller holds them, even if there
// is an error.
func (d *Driver) files(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}
	for name, make := range map[string]func(context.Context) (string, error){kernelFile: d.system.Vmlinux,
		initrdFile: d.system.Initrd} {
		path, err := make(ctx)
		if err != nil {
			return files, err
		}
		if files[name], err = d.store.storeFile(path); err != nil {
			return files, err
		}
	}
	return files, nil
}

// disks returns the disks of a machine and the kernel arguments that describe them. The caller holds the
// disks, even if there is an error.
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
		at, err := d.store.storeFile(path)
		if err != nil {
			return disks, "", err
		}
		disks = append(disks, at)
	}
	arguments, err = boot.Arguments()
	return disks, arguments + " " + kernelArguments, err
}

// kernelArguments are kernel arguments for such a machine: it has no bus to scan for devices, and a reboot ends
// it.
const kernelArguments = "pci=off reboot=k"

// plan returns the plan for the agent of a machine that has booted.
func (b *instance) plan() agentprotocol.Plan {
	p := b.settings.Plan()
	p.Hostname, p.Prebuilt, p.Strict = "sandbox", true, b.size.strict
	p.UID, p.GID = rootfs.CodeID, rootfs.CodeID
	return p
}

// bounds returns the part of a plan that can be changed later. The machine's kernel enforces the limits.
func bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	p := rootfs.Bounds(env, limits, port, true)
	p.MemoryBytes, p.VCPUs = int64(limits.MemoryMiB)<<20, int64(limits.VCPUs)
	return p
}

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close implements sandbox.Sandbox.
func (b *instance) Close() error { return b.closed() }

func (b *instance) end() error {
	defer close(b.gone)
	b.Client.Close()
	err := b.undo()
	b.egress.Close() // after the agent and the machine, whose answers it may wait for
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust implements sandbox.Adjustable. A machine cannot grow.
func (b *instance) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.settings.Adjust(ctx, b.Client, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		l.VCPUs = min(l.VCPUs, mostVCPUs)
		if b.paused {
			return l, sandbox.ErrPaused
		}
		if l.MemoryMiB > b.size.memoryMiB || l.VCPUs > b.size.vcpus {
			return l, fmt.Errorf("the machine has %d MiB for the code and %d processors, and cannot grow",
				b.size.memoryMiB, b.size.vcpus)
		}
		return l, nil
	})
}

// OOMKills asks the machine's kernel, because the host cannot see its OOM kills.
func (b *instance) OOMKills() int { return b.GroupKills() }

// Assign gives the machine the part of the processors that a principal has.
func (b *instance) Assign(principal string) error { return b.group.Assign(principal) }

// Usage implements sandbox.UsageReporter: the machine's use of the host, including its kernel. The number of
// processes is known to its kernel only.
func (b *instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	select {
	case <-b.gone:
		return sandbox.Usage{}, sandbox.ErrClosed
	default:
	}
	b.settings.Lock()
	defer b.settings.Unlock()
	if b.paused {
		return sandbox.Usage{}, sandbox.ErrPaused
	}
	u := b.group.Usage()
	u.Processes, u.OOMKills = -1, -1
	var err error
	u.Disk, err = b.DiskUsed(ctx)
	return u, err
}

// SetNetwork implements sandbox.Networked.
func (b *instance) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.settings.SetNetwork(ctx, b.Client, b.egress, n)
}

var (
	_ sandbox.Archive       = (*instance)(nil)
	_ sandbox.UsageReporter = (*instance)(nil)
	_ sandbox.Dialer        = (*instance)(nil)
	_ sandbox.Networked     = (*instance)(nil)
	_ sandbox.Files         = (*instance)(nil)
	_ sandbox.Adjustable    = (*instance)(nil)
	_ sandbox.Pausable      = (*instance)(nil)
	_ sandbox.Snapshotter   = (*instance)(nil)
)
