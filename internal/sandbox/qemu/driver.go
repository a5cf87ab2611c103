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
	bootWait    = 2 * time.Minute // for a machine to boot, emulated and on a busy host
	restoreWait = time.Minute     // for a machine to be restored
	smallest    = 256             // MiB of the smallest machine; each larger size is twice the one before
)

// Driver makes sandboxes. The caller of New must call Close.
type Driver struct {
	log       *slog.Logger
	program   string
	missing   error  // why no machine can be made
	remedy    string // what to do about missing
	guests    *guest.Cache
	groups    *cgroup.Hierarchy
	users     *rootfs.Users
	starter   *rootfs.Starter // the kernel kills a machine when the thread that started it exits
	instances sandbox.LiveSet[*instance]
	kvm       kvm
	began     reading // when the driver was made

	alive context.Context // ends with Close; templates outlive the calls that request them
	end   context.CancelFunc
	work  sync.WaitGroup // goroutines that make templates

	mu        sync.Mutex
	templates map[string]*template // nil after Close
	snapshots map[*snapshot]struct{}
}

// New looks for QEMU and a kernel. If one is missing, Create and Doctor report it.
func New(o Options) (*Driver, error) {
	d := &Driver{
		log:       o.Log,
		began:     readCounter(),
		groups:    cgroup.Discover(),
		users:     rootfs.NewUsers(),
		starter:   rootfs.NewStarter(0, nil),
		templates: map[string]*template{},
		snapshots: map[*snapshot]struct{}{},
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.alive, d.end = context.WithCancel(context.Background())
	d.kvm.init(o.Accelerator, !d.users.Single)
	program := o.Program
	if program == "" {
		program = "qemu-system-x86_64"
	}
	var err error
	if d.program, err = exec.LookPath(program); err != nil {
		d.missing, d.remedy = fmt.Errorf("QEMU was not found: %w", err), remedyProgram
		return d, nil
	}
	d.guests, d.missing = guest.New(guest.Options{
		Kernel:   o.Kernel,
		Modules:  o.Modules,
		Boot:     o.boot,
		Rootfs:   o.Rootfs,
		Folder:   o.Folder,
		MaxBytes: o.DiskBytes,
		Log:      d.log,
	})
	if d.missing != nil {
		d.remedy = guest.Remedy(d.missing)
	}
	return d, nil
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Capabilities implements sandbox.Driver. The machine's kernel enforces the limits, and the machine's size
// bounds them.
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
	limits, err := rootfs.InForce(spec.Limits)
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

func (d *Driver) create(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*instance, error) {
	accelerator, err := d.accelerator(ctx)
	if err != nil {
		return nil, err
	}
	layout, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	kind := kindOf(spec, limits, accelerator)
	kind.texts = layout.Files
	limits.VCPUs = min(limits.VCPUs, kind.vcpus)
	b := d.newInstance(limits, layout.Env, spec.Env, spec.Strict)
	if len(spec.Trees) > 0 {
		// No other sandbox has the same disks, so there is no template for it.
		return b, d.bootInstance(ctx, b, kind, spec.Trees)
	}
	t, err := d.template(ctx, kind)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, sandbox.ErrDriverClosed) {
			return nil, err
		}
		d.log.Warn("no template of a virtual machine could be made, so each sandbox boots", "error", err)
		return b, d.bootInstance(ctx, b, kind, nil)
	}
	defer d.releaseTemplate(t)
	return b, d.restoreInstance(ctx, b, t.image)
}

// kind holds what sandboxes must have in common to be restored from one template.
type kind struct {
	image       *sandbox.Image
	texts       []agentprotocol.TextFile // determined by the image
	memoryMiB   int
	vcpus       int
	accelerator string
	strict      bool
}

func kindOf(spec sandbox.Spec, limits sandbox.Limits, accelerator string) kind {
	k := kind{
		image:       spec.Image,
		memoryMiB:   smallest,
		vcpus:       limits.VCPUs,
		accelerator: accelerator,
		strict:      spec.Strict,
	}
	for k.memoryMiB < limits.MemoryMiB {
		k.memoryMiB *= 2
	}
	if accelerator == tcg {
		k.vcpus = 1 // a single thread emulates all processors
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

// build prepares what machines of a kind boot.
func (d *Driver) build(ctx context.Context, k kind, trees []sandbox.Tree) (build, error) {
	b := build{
		memoryMiB:   k.memoryMiB + overheadMiB,
		vcpus:       k.vcpus,
		accelerator: k.accelerator,
		kernel:      d.guests.Kernel().Path,
	}
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
	b.disks, b.holds = disksOf(boot.Root, boot.Trees)
	b.arguments, err = boot.Arguments()
	return b, err
}

// Close closes every sandbox, template and snapshot.
func (d *Driver) Close() error {
	d.end()
	err := d.instances.CloseAll()
	d.work.Wait()
	d.mu.Lock()
	templates, snapshots := d.templates, slices.Collect(maps.Keys(d.snapshots))
	d.templates = nil
	d.mu.Unlock()
	for _, t := range templates {
		t.closeTemplate()
	}
	for _, s := range snapshots {
		s.Close()
	}
	d.starter.Close()
	return err
}
