//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/guest"
	"gatehouse/internal/sandbox/rootfs"
)

const (
	bootWait    = 2 * time.Minute // for a machine to boot, emulated and on a host that is busy
	restoreWait = time.Minute     // for one to go on from a template
	smallest    = 256             // MiB of the smallest machine; others are twice as large, and so on
)

// Driver makes sandboxes. New makes one; whoever does calls Close.
type Driver struct {
	log     *slog.Logger
	program string
	missing error  // why there can be no machines
	remedy  string // what to do about that
	guests  *guest.Guest
	groups  *cgroup.Place
	users   *rootfs.Users
	starter *rootfs.Starter // the kernel ends a machine when the thread ends that started it
	boxes   sandbox.Living[*box]
	kvm     kvm
	began   reading // when the driver was made

	// alive ends with Close, and with it the trial of KVM, which outlives the call that began it.
	alive context.Context
	end   context.CancelFunc
	works sync.WaitGroup // what makes templates

	mu        sync.Mutex
	templates map[string]*template // nil after Close
	snapshots map[*snapshot]struct{}
}

// New looks for QEMU and a kernel. What is missing is what Create and Doctor
// tell.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, began: readCounter(), groups: cgroup.Find(), users: rootfs.NewUsers(), starter: rootfs.NewStarter(0, nil), templates: map[string]*template{}, snapshots: map[*snapshot]struct{}{}}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.alive, d.end = context.WithCancel(context.Background())
	d.kvm.init(o.Accelerator, !d.users.One)
	program := o.Program
	if program == "" {
		program = "qemu-system-x86_64"
	}
	var err error
	if d.program, err = exec.LookPath(program); err != nil {
		d.missing, d.remedy = fmt.Errorf("there is no QEMU: %w", err), remedyProgram
		return d, nil
	}
	d.guests, d.missing = guest.New(guest.Options{Kernel: o.Kernel, Modules: o.Modules, Rootfs: o.Rootfs, Folder: o.Folder, Most: o.DiskBytes, Boot: o.boot, Log: d.log})
	if d.missing != nil {
		d.remedy = guest.Remedy(d.missing)
	}
	return d, nil
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities tells what it holds here. The limits are held by the kernel in
// the machine, and those of the machine by its size.
func (d *Driver) Capabilities() sandbox.Capabilities {
	if d.missing != nil {
		return sandbox.Capabilities{}
	}
	return sandbox.Capabilities{
		Tier: sandbox.Machine, Memory: sandbox.ByCgroup2, Processes: sandbox.ByCgroup2, CPU: sandbox.ByCgroup2,
		OwnUsers: true, Seccomp: true, Terminals: true,
	}
}

// Create makes a sandbox.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := rootfs.Held(spec.Limits)
	if err != nil {
		return nil, err
	}
	if d.missing != nil {
		return nil, fmt.Errorf("create a sandbox: %w; %s", d.missing, d.remedy)
	}
	b, err := d.create(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return b, nil
}

func (d *Driver) create(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*box, error) {
	accelerator, err := d.accelerator(ctx)
	if err != nil {
		return nil, err
	}
	look, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	kind := kindOf(spec, limits, accelerator)
	kind.texts = look.Texts
	limits.VCPUs = min(limits.VCPUs, kind.vcpus)
	b := d.newBox(limits, look.Env, spec.Env, spec.Strict)
	if len(spec.Trees) > 0 {
		// Its disks are nobody else's, so there is nothing to go on from.
		return b, d.cold(ctx, b, kind, spec.Trees)
	}
	t, err := d.template(ctx, kind)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, sandbox.ErrDriverClosed) {
			return nil, err
		}
		d.log.Warn("virtual machines are booted one by one, since none could be kept to go on from", "error", err)
		return b, d.cold(ctx, b, kind, nil)
	}
	defer d.letGo(t)
	return b, d.warm(ctx, b, t.image)
}

// kind is what sandboxes have in common that can go on from one template.
type kind struct {
	image       *sandbox.Image
	texts       []agentprotocol.Text // which follow from the image
	memoryMiB   int
	vcpus       int
	accelerator string
	strict      bool
}

func kindOf(spec sandbox.Spec, limits sandbox.Limits, accelerator string) kind {
	k := kind{image: spec.Image, memoryMiB: smallest, vcpus: limits.VCPUs, accelerator: accelerator, strict: spec.Strict}
	for k.memoryMiB < limits.MemoryMiB {
		k.memoryMiB *= 2
	}
	if accelerator == tcg {
		k.vcpus = 1 // one thread emulates all there are
	}
	return k
}

func (k kind) key() string {
	image := ""
	if k.image != nil {
		image = k.image.ID
	}
	return fmt.Sprint(k.memoryMiB, " ", k.vcpus, " ", k.accelerator, " ", k.strict, " ", image)
}

// build makes what machines of a kind boot.
func (d *Driver) build(ctx context.Context, k kind, trees []sandbox.Tree) (build, error) {
	b := build{memoryMiB: k.memoryMiB + overheadMiB, vcpus: k.vcpus, accelerator: k.accelerator, kernel: d.guests.Kernel().Path}
	var err error
	if b.initrd, err = d.guests.Initrd(ctx); err != nil {
		return b, err
	}
	var boot guest.Boot
	if k.accelerator == tcg {
		if boot.Emulated, err = d.counterKHz(ctx); err != nil {
			return b, err
		}
	}
	if boot.Root, err = d.guests.Root(ctx, k.image); err != nil {
		return b, err
	}
	for _, t := range trees {
		disk, err := d.guests.Tree(ctx, t.From)
		if err != nil {
			return b, err
		}
		at := t.To
		if at == "" {
			at = t.From
		}
		boot.Trees = append(boot.Trees, guest.Tree{Disk: disk, At: at})
	}
	b.disks, b.uses = disksOf(boot.Root, boot.Trees)
	b.arguments, err = boot.Arguments()
	return b, err
}

// Close ends every sandbox and what is kept to go on from.
func (d *Driver) Close() error {
	d.end()
	err := d.boxes.CloseAll()
	d.works.Wait()
	d.mu.Lock()
	templates, snapshots := d.templates, slices.Collect(maps.Keys(d.snapshots))
	d.templates = nil
	d.mu.Unlock()
	for _, t := range templates {
		t.close()
	}
	for _, s := range snapshots {
		s.Close()
	}
	d.starter.Close()
	return err
}
