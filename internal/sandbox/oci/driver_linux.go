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
	"gatehouse/internal/sandbox/rootfs"
)

// Driver makes sandboxes. The caller of New must call Close.
type Driver struct {
	log       *slog.Logger
	folder    string // of bundles and the runtime's state
	agent     string // path of the agent's executable
	runtime   *runtimeProgram
	missing   error // why no runtime was found
	groups    *cgroup.Hierarchy
	users     *rootfs.Users
	starter   *rootfs.Starter
	instances sandbox.LiveSet[*instance]
}

const prefix = "gatehouse-oci-"

// New prepares what every sandbox needs. If the runtime is missing, Create and Doctor report it.
func New(o Options) (*Driver, error) {
	d := &Driver{
		log:     o.Log,
		groups:  cgroup.Discover(),
		users:   rootfs.NewUsers(),
		starter: rootfs.NewStarter(0, hideHybrid),
	}
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
	if err := d.setDefaults(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	d.runtime, d.missing = findRuntime(o.Runtime, filepath.Join(folder, "state"))
	d.sweepLeftovers(parent)
	return d, nil
}

// setDefaults writes the agent to the folder, whose permissions allow the ids of a sandbox to pass to their root.
func (d *Driver) setDefaults() error {
	program, err := binary.Agent()
	if err != nil {
		return err
	}
	d.agent = filepath.Join(d.folder, "agent")
	return errors.Join(os.Chmod(d.folder, 0o711), os.WriteFile(d.agent, program, 0o555), os.Chmod(d.agent, 0o555))
}

// sweepLeftovers removes the folders of hosts that were killed. Their containers ended with them.
func (d *Driver) sweepLeftovers(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, dir := range all {
		if procid.Left(prefix, filepath.Base(dir)) {
			d.removeLeftContainers(filepath.Join(dir, "state"))
			os.RemoveAll(dir)
		}
	}
}

// removeLeftContainers makes a runtime remove the control groups of containers that it could not
// remove when it was killed with its host.
func (d *Driver) removeLeftContainers(state string) {
	if d.missing != nil || d.runtime.noGroup {
		return
	}
	left, _ := os.ReadDir(state)
	old := runtimeProgram{path: d.runtime.path, state: state}
	for _, container := range left {
		ctx, cancel := context.WithTimeout(context.Background(), bundle.Patience)
		args := old.removeArgs(container.Name(), os.DevNull)
		if err := exec.CommandContext(ctx, args[0], args[1:]...).Run(); err != nil {
			d.log.Warn("a container of a killed host was not removed completely", "error", err)
		}
		cancel()
	}
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Capabilities implements sandbox.Driver.
func (d *Driver) Capabilities() sandbox.Capabilities {
	if d.missing != nil {
		return sandbox.Capabilities{}
	}
	return rootfs.Capabilities(d.groups, d.users)
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
	return b, nil
}

// Close closes every sandbox.
func (d *Driver) Close() error {
	d.instances.CloseAll()
	d.starter.Close()
	return os.RemoveAll(d.folder)
}
