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

// Driver makes sandboxes. New makes one; whoever does calls Close.
type Driver struct {
	log     *slog.Logger
	folder  string // of jails, snapshots and the shelf
	shelf   shelf
	parts   parts
	missing error // why there are no machines
	system  system
	groups  *cgroup.Place
	users   *rootfs.Users
	boxes   sandbox.Living[*box]
}

// parts are the programs. The jailer is nil where machines are not jailed.
type parts struct{ vmm, jailer *program }

// system is what machines boot, as package guest makes it.
type system interface {
	Vmlinux(ctx context.Context) (path string, err error)
	Initrd(ctx context.Context) (path string, err error)
	Root(ctx context.Context, image *sandbox.Image) (guest.Disk, error)
	Tree(ctx context.Context, from string) (guest.Disk, error)
	MakeRoom(bytes int64) error
	Beside(folder string, drop func() bool)
}

const prefix = "gatehouse-firecracker-"

// New prepares what every sandbox needs. What is missing is what Create and
// Doctor tell.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: cgroup.Find(), users: rootfs.NewUsers()}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	parent := cmp.Or(o.Chroot, chroots(os.Geteuid() == 0))
	sweep(parent)
	if d.parts, d.missing = findParts(o, os.Geteuid() == 0); d.missing != nil {
		return d, nil
	}
	made, err := guest.New(guest.Options{Kernel: o.Kernel, Modules: o.Modules, Rootfs: o.Rootfs, Folder: o.Cache, Most: o.DiskBytes, Log: d.log})
	if err != nil {
		d.missing = &Missing{nameKernel, err, guest.Remedy(err)}
		return d, nil
	}
	if err := d.settle(parent); err != nil {
		return nil, err
	}
	d.use(made)
	return d, nil
}

// use has machines boot what a system makes. What is on the shelf counts with
// it.
func (d *Driver) use(s system) {
	d.system, d.shelf.room = s, s.MakeRoom
	s.Beside(d.shelf.dir, d.shelf.drop)
}

// settle makes the folder of this driver.
func (d *Driver) settle(parent string) error {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(parent, prefix+procid.Self()+"-")
	if err != nil {
		return err
	}
	d.folder = folder
	d.shelf.dir = filepath.Join(folder, "shelf")
	if err := errors.Join(os.Mkdir(d.shelf.dir, 0o700), os.Mkdir(d.kept(), 0o700)); err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	return nil
}

// chroots is where jails are when nothing else is said. Devices in them have to
// work, which in a place for temporary files they often do not.
func chroots(root bool) string {
	if root {
		return "/srv/jailer"
	}
	return os.TempDir()
}

// kept is the folder of snapshots.
func (d *Driver) kept() string { return filepath.Join(d.folder, "kept") }

// sweep removes what hosts left that were killed. Their machines ended with
// them.
func sweep(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			os.RemoveAll(dir)
		}
	}
}

// A Missing is a program that machines need and that is not as it has to be.
type Missing struct {
	What   string // the finding it makes
	Err    error
	Remedy string
}

func (m *Missing) Error() string { return fmt.Sprintf("%v; %s", m.Err, m.Remedy) }

func (m *Missing) Unwrap() error { return m.Err }

const (
	nameBinary = "the program firecracker"
	nameJailer = "the program jailer"
	nameKernel = "a kernel"

	remedyBinary = "install a release of Firecracker, at least 1.16.1, as firecracker in the PATH, or name it by GATEHOUSE_FIRECRACKER"
	remedyJailer = "put the jailer of the same release beside firecracker: as root machines run in its jail only"
)

// findParts looks for the programs.
func findParts(o Options, root bool) (p parts, err error) {
	name := o.Binary
	if name == "" {
		name = "firecracker"
	}
	if p.vmm, err = find(name); err != nil {
		return p, &Missing{nameBinary, err, remedyBinary}
	}
	if p.vmm.version.before(oldest) {
		return p, &Missing{nameBinary, fmt.Errorf("%s is %s, which is older than %s", p.vmm.path, p.vmm.version, oldest), remedyOld}
	}
	if !strings.Contains(filepath.Base(p.vmm.path), "firecracker") {
		return p, &Missing{nameBinary, fmt.Errorf("%s has not firecracker in its name, which the jailer wants", p.vmm.path), "give it that name"}
	}
	if !root {
		return p, nil
	}
	if p.jailer, err = findJailer(o.Jailer, p.vmm.path); err != nil {
		return p, &Missing{nameJailer, err, remedyJailer}
	}
	if p.jailer.version != p.vmm.version {
		return p, &Missing{nameJailer, fmt.Errorf("%s is %s and %s is %s", p.jailer.path, p.jailer.version, p.vmm.path, p.vmm.version), remedyJailer}
	}
	if !hasShell() {
		return p, &Missing{nameJailer, fmt.Errorf("there is no %s, which ends a jailed process with the host", keeper[0]), "install a shell"}
	}
	return p, nil
}

// findJailer looks beside the binary first, where releases have it.
func findJailer(asked, binary string) (*program, error) {
	if asked != "" {
		return find(asked)
	}
	beside := filepath.Join(filepath.Dir(binary), "jailer")
	if _, err := os.Stat(beside); err == nil {
		return find(beside)
	}
	return find("jailer")
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities tells what it holds here. The limits are held by the kernel of
// the machine, and once more by the machine's size.
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
	limits, err := held(spec.Limits)
	if err != nil {
		return nil, err
	}
	if d.missing != nil {
		return nil, fmt.Errorf("create a sandbox: %w", d.missing)
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", remedied(err))
	}
	return b, nil
}

// mostVCPUs is what a machine may have.
const mostVCPUs = 32

// held are the limits that hold when these are asked for.
func held(l sandbox.Limits) (sandbox.Limits, error) {
	l, err := rootfs.Held(l)
	l.VCPUs = min(l.VCPUs, mostVCPUs)
	return l, err
}

// Close ends every sandbox and throws away every snapshot.
func (d *Driver) Close() error {
	d.boxes.CloseAll()
	return os.RemoveAll(d.folder)
}
