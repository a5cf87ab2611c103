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

// Driver makes sandboxes. New makes one; whoever does calls Close.
type Driver struct {
	log     *slog.Logger
	folder  string // of bundles, runsc's state and snapshots
	agent   string // its program
	runsc   *runsc
	missing error // why there is no runsc
	groups  *cgroup.Place
	starter *rootfs.Starter // the kernel ends what a thread of it started when the host ends
	boxes   sandbox.Living[*box]
}

const prefix = "gatehouse-gvisor-"

// New prepares what every sandbox needs. A runsc that is missing is what Create
// and Doctor tell.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: cgroup.Find(), starter: rootfs.NewStarter(0, nil)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	parent := o.Folder
	if parent == "" {
		parent = os.TempDir()
	}
	sweep(parent)
	folder, err := os.MkdirTemp(parent, prefix+procid.Self()+"-")
	if err != nil {
		return nil, err
	}
	if d.folder, err = filepath.Abs(folder); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if err := d.fill(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	d.runsc, d.missing = findRunsc(o.Runsc, filepath.Join(d.folder, "state"))
	return d, nil
}

func (d *Driver) fill() error {
	program, err := binary.Agent()
	if err != nil {
		return err
	}
	d.agent = filepath.Join(d.folder, "agent")
	return errors.Join(os.WriteFile(d.agent, program, 0o555), os.Chmod(d.agent, 0o555))
}

// sweep removes what hosts left that were killed. Their kernels ended with
// them, and what did not is in a control group, which is swept as well.
func sweep(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			os.RemoveAll(dir)
		}
	}
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities tells what it holds here. Processes are held by the kernel in
// user space, which has control groups of its own; memory is not, since that
// kernel limits the memory of no process.
func (d *Driver) Capabilities() sandbox.Capabilities {
	if d.missing != nil {
		return sandbox.Capabilities{}
	}
	return sandbox.Capabilities{
		Tier: sandbox.UserKernel, Memory: d.groups.Held("memory"), Processes: sandbox.ByCgroup1, CPU: d.groups.Held("cpu"),
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
		return nil, fmt.Errorf("create a sandbox: %w", d.missing)
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return d.offer(b), nil
}

// offer hides from a sandbox what cannot be done with it here.
func (d *Driver) offer(b *box) sandbox.Sandbox {
	if d.runsc.rootless {
		return b
	}
	return keepable{b}
}

// Close ends every sandbox and throws away every snapshot.
func (d *Driver) Close() error {
	err := d.boxes.CloseAll()
	d.starter.Close()
	return errors.Join(err, os.RemoveAll(d.folder))
}
