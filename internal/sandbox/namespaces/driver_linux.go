//go:build amd64 || arm64

package namespaces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent/binary"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// Driver makes sandboxes. The caller of New must call Close.
type Driver struct {
	log       *slog.Logger
	image     *os.File // the agent's executable, sealed
	groups    *cgroup.Hierarchy
	users     *rootfs.Users
	starter   *rootfs.Starter
	instances sandbox.LiveSet[*instance]
	proxy     proxy.Options
}

// New prepares what every sandbox needs. It fails only for reasons such as lack of memory; whether sandboxes
// can be made is reported by Doctor.
func New(o Options) (*Driver, error) {
	d := &Driver{
		log:     o.Log,
		groups:  &cgroup.Hierarchy{},
		users:   rootfs.NewUsers(),
		starter: rootfs.NewStarter(o.Boots, nil),
		proxy:   o.Proxy,
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if !o.NoCgroups {
		d.groups = cgroup.Discover()
	}
	image, err := sealed()
	if err != nil {
		return nil, err
	}
	d.image = image
	return d, nil
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Capabilities implements sandbox.Driver.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return rootfs.Capabilities(d.groups, d.users)
}

// Create makes a sandbox.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := rootfs.InForce(spec.Limits)
	if err != nil {
		return nil, err
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil && spec.WritableRoot && strings.Contains(err.Error(), agentprotocol.RootLayer) {
		d.log.Warn("the root of a sandbox is read-only, because the kernel cannot mount a layer over it", "error", err)
		spec.WritableRoot = false
		b, err = d.make(ctx, spec, limits)
	}
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", withRemedy(err))
	}
	return b, nil
}

// UserRange implements sandbox.UserRanges.
func (d *Driver) UserRange() error {
	_, err := d.users.KeptRange()
	return err
}

// Close closes every sandbox.
func (d *Driver) Close() error {
	d.instances.CloseAll()
	d.starter.Close()
	return d.image.Close()
}

// sealed copies the agent to a memory file that no process can change.
func sealed() (*os.File, error) {
	program, err := binary.Agent()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("gatehouse-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 the flag for executables did not exist
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
