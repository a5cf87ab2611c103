//go:build amd64 || arm64

package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent/binary"
	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/rootfs"
)

// Driver makes sandboxes. New makes one; whoever does calls Close.
type Driver struct {
	log     *slog.Logger
	folder  string // of bundles and the runtime's state
	agent   string // its program
	runtime *runtimeProgram
	missing error // why there is no runtime
	groups  *cgroup.Place
	users   *rootfs.Users
	starter *rootfs.Starter
	boxes   sandbox.Living[*box]
}

const prefix = "gatehouse-oci-"

// New prepares what every sandbox needs. A runtime that is missing is what
// Create and Doctor tell.
func New(o Options) (*Driver, error) {
	d := &Driver{log: o.Log, groups: cgroup.Find(), users: rootfs.NewUsers(), starter: rootfs.NewStarter(0, hideHybrid)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	parent := o.Folder
	if parent == "" {
		parent = os.TempDir()
	}
	folder, err := os.MkdirTemp(parent, prefix+procid.Self()+"-")
	if err != nil {
		return nil, err
	}
	d.folder = folder
	if err := d.fill(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	d.runtime, d.missing = findRuntime(o.Runtime, filepath.Join(folder, "state"))
	d.sweep(parent)
	return d, nil
}

// fill puts the agent into the folder, through which the ids of a sandbox have
// to reach their root.
func (d *Driver) fill() error {
	program, err := binary.Agent()
	if err != nil {
		return err
	}
	d.agent = filepath.Join(d.folder, "agent")
	return errors.Join(os.Chmod(d.folder, 0o711), os.WriteFile(d.agent, program, 0o555), os.Chmod(d.agent, 0o555))
}

// sweep removes what hosts left that were killed. Their containers ended with
// them.
func (d *Driver) sweep(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			d.forget(filepath.Join(dir, "state"))
			os.RemoveAll(dir)
		}
	}
}

// forget has a runtime that makes groups of its own take them away, which it
// could not do when it was killed with its host.
func (d *Driver) forget(state string) {
	if d.missing != nil || d.runtime.noGroup {
		return
	}
	left, _ := os.ReadDir(state)
	old := runtimeProgram{path: d.runtime.path, state: state}
	for _, container := range left {
		ctx, cancel := context.WithTimeout(context.Background(), bundle.Patience)
		args := old.remove(container.Name(), os.DevNull)
		if err := exec.CommandContext(ctx, args[0], args[1:]...).Run(); err != nil {
			d.log.Warn("a container of a host that was killed left something behind", "error", err)
		}
		cancel()
	}
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities tells what it holds here.
func (d *Driver) Capabilities() sandbox.Capabilities {
	if d.missing != nil {
		return sandbox.Capabilities{}
	}
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
	if d.missing != nil {
		return nil, fmt.Errorf("create a sandbox: %w", d.missing)
	}
	b, err := d.make(ctx, spec, limits)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return b, nil
}

// Close ends every sandbox.
func (d *Driver) Close() error {
	d.boxes.CloseAll()
	d.starter.Close()
	return os.RemoveAll(d.folder)
}
