//go:build amd64 || arm64

package namespaces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent/binary"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// Driver makes sandboxes. New makes one; whoever does calls Close.
type Driver struct {
	log     *slog.Logger
	image   *os.File // the agent, sealed
	groups  *cgroup.Place
	users   *rootfs.Users
	starter *rootfs.Starter
	boxes   sandbox.Living[*box]
}

// New prepares what every sandbox needs. It fails only for want of memory and
// the like: whether sandboxes can be made is what Doctor tells.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: &cgroup.Place{}, users: rootfs.NewUsers(), starter: rootfs.NewStarter(o.Boots, nil)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if !o.NoCgroups {
		d.groups = cgroup.Find()
	}
	image, err := sealed()
	if err != nil {
		return nil, err
	}
	d.image = image
	return d, nil
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities tells what it holds here.
func (d *Driver) Capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Tier: sandbox.Namespaces, Memory: d.groups.Held("memory"), Processes: d.groups.Held("pids"), CPU: d.groups.Held("cpu"),
		OwnUsers: !d.users.One, Seccomp: true, Landlock: landlock.Version(), Terminals: true,
	}
	if c.Memory == sandbox.NotHeld {
		c.Memory = sandbox.PerCall
	}
	if c.Processes == sandbox.NotHeld {
		c.Processes = sandbox.ByUser
	}
	return c
}

// Create makes a sandbox.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := rootfs.Held(spec.Limits)
	if err != nil {
		return nil, err
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", remedied(err))
	}
	return b, nil
}

// Close ends every sandbox.
func (d *Driver) Close() error {
	d.boxes.CloseAll()
	d.starter.Close()
	return d.image.Close()
}

// sealed puts the agent into memory that nobody can change any more.
func sealed() (*os.File, error) {
	program, err := binary.Agent()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("gatehouse-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 there was no need to say that it is a program
		fd, err = unix.MemfdCreate("gatehouse-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "agent")
	if _, err := f.Write(program); err != nil {
		f.Close()
		return nil, fmt.Errorf("write(the agent): %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("fcntl(F_ADD_SEALS): %w", err)
	}
	return f, nil
}
