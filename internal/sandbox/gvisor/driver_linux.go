//go:build amd64 || arm64

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent/binary"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/rootfs"
)

// Driver makes sandboxes. The caller of New must call Close.
type Driver struct {
	log       *slog.Logger
	folder    string // of bundles, runsc's state and snapshots
	agent     string // path of the agent's executable
	runsc     *runsc
	missing   error // why no runsc was found
	groups    *cgroup.Hierarchy
	starter   *rootfs.Starter // the kernel kills what its threads started when the host ends
	instances sandbox.LiveSet[*instance]
}

const prefix = "gatehouse-gvisor-"

// New prepares what every sandbox needs. If runsc is missing, Create and Doctor report it.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: cgroup.Discover(), starter: rootfs.NewStarter(0, nil)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	parent := o.Folder
	if parent == "" {
		parent = os.TempDir()
	}
	sweepLeftovers(parent)
	folder, err := os.MkdirTemp(parent, prefix+procid.Self()+"-")
	if err != nil {
		return nil, err
	}
	if d.folder, err = filepath.Abs(folder); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if err := d.setDefaults(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	d.runsc, d.missing = findRunsc(o.Runsc, filepath.Join(d.folder, "state"))
	return d, nil
}

func (d *Driver) setDefaults() error {
	program, err := binary.Agent()
	if err != nil {
		return err
	}
	d.agent = filepath.Join(d.folder, "agent")
	return errors.Join(os.WriteFile(d.agent, program, 0o555), os.Chmod(d.agent, 0o555))
}

// sweepLeftovers removes the folders of hosts that were killed. Their kernels ended with them, or are in a control
// group that cgroup.Discover removes.
func sweepLeftovers(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			os.RemoveAll(dir)
		}
	}
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Capabilities implements sandbox.Driver. The process limit is enforced by gVisor's own control groups; the
// memory limit is not, because gVisor does not limit memory inside.
func (d *Driver) Capabilities() sandbox.Capabilities {
	if d.missing != nil {
		return sandbox.Capabilities{}
	}
	return sandbox.Capabilities{
		Tier: sandbox.UserKernel, Memory: d.groups.Enforcement("memory"), Processes: sandbox.ByCgroup1,
		CPU:      d.groups.Enforcement("cpu"),
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
		return nil, fmt.Errorf("create a sandbox: %w", d.missing)
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return d.offer(b), nil
}

// offer removes from a sandbox the abilities that do not work here.
func (d *Driver) offer(b *instance) sandbox.Sandbox {
	if d.runsc.rootless {
		return b
	}
	return snapshottable{b}
}

// Close closes every sandbox and deletes every snapshot.
func (d *Driver) Close() error {
	err := d.instances.CloseAll()
	d.starter.Close()
	return errors.Join(err, os.RemoveAll(d.folder))
}
