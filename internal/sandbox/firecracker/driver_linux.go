//go:build amd64 || arm64

package firecracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/guest"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/rootfs"
)

// Driver makes sandboxes. The caller of New must call Close.
type Driver struct {
	log       *slog.Logger
	folder    string // of jails, snapshots and the file store
	store     fileStore
	parts     parts
	missing   error // why no machine can be made
	system    system
	groups    *cgroup.Hierarchy
	users     *rootfs.Users
	instances sandbox.LiveSet[*instance]
}

// parts are the programs. The jailer is nil if machines are not jailed.
type parts struct{ vmm, jailer *program }

// system provides what machines boot; package guest implements it.
type system interface {
	Vmlinux(ctx context.Context) (path string, err error)
	Initrd(ctx context.Context) (path string, err error)
	Root(ctx context.Context, image *sandbox.Image) (guest.Disk, error)
	Tree(ctx context.Context, from string) (guest.Disk, error)
	MakeRoom(bytes int64) error
	CountFolder(folder string, drop func() bool)
}

const prefix = "gatehouse-firecracker-"

// New prepares what every sandbox needs. If something is missing, Create and Doctor report it.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: cgroup.Discover(), users: rootfs.NewUsers()}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	parent := cmp.Or(o.Chroot, chroots(os.Geteuid() == 0))
	sweepLeftovers(parent)
	if d.parts, d.missing = findParts(o, os.Geteuid() == 0); d.missing != nil {
		return d, nil
	}
	made, err := guest.New(guest.Options{
		Kernel:   o.Kernel,
		Modules:  o.Modules,
		Rootfs:   o.Rootfs,
		Folder:   o.Cache,
		MaxBytes: o.DiskBytes,
		Log:      d.log,
	})
	if err != nil {
		d.missing = &Missing{nameKernel, err, guest.Remedy(err)}
		return d, nil
	}
	if err := d.makeFolder(parent); err != nil {
		return nil, err
	}
	d.setSystem(made)
	return d, nil
}

// setSystem sets the source of what machines boot. The files of the store count against its limit.
func (d *Driver) setSystem(s system) {
	d.system, d.store.makeRoom = s, s.MakeRoom
	s.CountFolder(d.store.dir, d.store.drop)
}

// makeFolder creates the folder of this driver.
func (d *Driver) makeFolder(parent string) error {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(parent, prefix+procid.Self()+"-")
	if err != nil {
		return err
	}
	d.folder = folder
	d.store.dir = filepath.Join(folder, "shelf")
	if err := errors.Join(os.Mkdir(d.store.dir, 0o700), os.Mkdir(d.snapshotFolder(), 0o700)); err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	return nil
}

// chroots returns the default folder for jails. Its file system must allow devices, which those for temporary
// files often do not.
func chroots(root bool) string {
	if root {
		return "/srv/jailer"
	}
	return os.TempDir()
}

// snapshotFolder returns the folder of snapshots.
func (d *Driver) snapshotFolder() string { return filepath.Join(d.folder, "kept") }

// sweepLeftovers removes the folders of hosts that were killed. Their machines ended with them.
func sweepLeftovers(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			os.RemoveAll(dir)
		}
	}
}

// A Missing describes a required program that is missing or unsuitable.
type Missing struct {
	What   string // name of its finding
	Err    error
	Remedy string
}

func (m *Missing) Error() string { return fmt.Sprintf("%v; %s", m.Err, m.Remedy) }

func (m *Missing) Unwrap() error { return m.Err }

const (
	nameBinary = "the program firecracker"
	nameJailer = "the program jailer"
	nameKernel = "a kernel"

	remedyBinary = "install a release of Firecracker, at least 1.16.1, as firecracker in the PATH, or name it " +
		"by GATEHOUSE_FIRECRACKER"
	remedyJailer = "put the jailer of the same release beside firecracker; with gatehouse running as root, " +
		"machines run only in its jail"
)

// findParts finds the programs.
func findParts(o Options, root bool) (p parts, err error) {
	name := o.Binary
	if name == "" {
		name = "firecracker"
	}
	if p.vmm, err = findProgram(name); err != nil {
		return p, &Missing{nameBinary, err, remedyBinary}
	}
	if p.vmm.version.before(oldest) {
		return p, &Missing{nameBinary, fmt.Errorf("%s is %s, which is older than %s", p.vmm.path, p.vmm.version,
			oldest), remedyOld}
	}
	if !strings.Contains(filepath.Base(p.vmm.path), "firecracker") {
		return p, &Missing{nameBinary,
			fmt.Errorf("%s does not have firecracker in its name, which the jailer requires", p.vmm.path),
			"rename it so that its name contains firecracker"}
	}
	if !root {
		return p, nil
	}
	if p.jailer, err = findJailer(o.Jailer, p.vmm.path); err != nil {
		return p, &Missing{nameJailer, err, remedyJailer}
	}
	if p.jailer.version != p.vmm.version {
		return p, &Missing{nameJailer, fmt.Errorf("%s is %s and %s is %s", p.jailer.path, p.jailer.version,
			p.vmm.path, p.vmm.version), remedyJailer}
	}
	if !hasShell() {
		return p, &Missing{nameJailer,
			fmt.Errorf("%s does not exist; it ends a jailed process together with the host", initShell[0]),
			"install a shell"}
	}
	return p, nil
}

// findJailer looks first in the folder of firecracker, where releases have it.
func findJailer(asked, binary string) (*program, error) {
	if asked != "" {
		return findProgram(asked)
	}
	beside := filepath.Join(filepath.Dir(binary), "jailer")
	if _, err := os.Stat(beside); err == nil {
		return findProgram(beside)
	}
	return findProgram("jailer")
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
		OwnUsers: true, Seccomp: true, Landlock: landlock.Version(), Terminals: true,
	}
}

// Create makes a sandbox.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := inForce(spec.Limits)
	if err != nil {
		return nil, err
	}
	if d.missing != nil {
		return nil, fmt.Errorf("create a sandbox: %w", d.missing)
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", withRemedy(err))
	}
	return b, nil
}

// mostVCPUs is the most processors of a machine.
const mostVCPUs = 32

// inForce returns the limits in force for requested ones.
func inForce(l sandbox.Limits) (sandbox.Limits, error) {
	l, err := rootfs.InForce(l)
	l.VCPUs = min(l.VCPUs, mostVCPUs)
	return l, err
}

// Close closes every sandbox and deletes every snapshot.
func (d *Driver) Close() error {
	d.instances.CloseAll()
	return os.RemoveAll(d.folder)
}
