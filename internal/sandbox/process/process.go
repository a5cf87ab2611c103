// Package process runs code as processes of the host, without any isolation.
//
// It is for platforms where no other driver works, and for code that is trusted. A call gets a folder and an
// environment of its own and ends with all its descendants. Nothing else is restricted: the code may do
// whatever the host's user may. It must be enabled by a setting that says so.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"gatehouse/internal/sandbox"
)

// Name is the driver's name.
const Name = "process"

// ErrUnsafeNotSet is returned by New without Options.Unsafe.
var ErrUnsafeNotSet = errors.New("the driver process isolates nothing: code it runs may do whatever the host's " +
	"user may; it is used only if its setting unsafe is true")

// Options are for New.
type Options struct {
	Unsafe bool // confirms that the missing isolation is known; required
	// Folder is the parent of the sandboxes' folders; "" means the system's folder for temporary files. Tests
	// set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

// Driver makes sandboxes without isolation. The caller of New must call Close.
type Driver struct {
	o         Options
	instances sandbox.LiveSet[*instance]
}

// New returns a driver, if Options.Unsafe is set.
func New(o Options) (*Driver, error) {
	if !o.Unsafe {
		return nil, ErrUnsafeNotSet
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{o: o}, nil
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Capabilities returns that nothing is enforced.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Tier: sandbox.NoIsolation, Memory: sandbox.NotEnforced, Processes: sandbox.NotEnforced,
		CPU:       sandbox.NotEnforced,
		Terminals: runtime.GOOS != "windows",
	}
}

// Doctor reports that there is no isolation, and whether a folder can be created.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	made := sandbox.Finding{Name: "a folder is made for a sandbox", Needed: true, OK: true}
	if b, err := d.makeInstance(sandbox.Defaults(), nil); err != nil {
		made.OK, made.Detail, made.Remedy = false, err.Error(), "name another folder for temporary files by TMPDIR"
	} else {
		made.Detail = b.home
		b.Close()
	}
	return []sandbox.Finding{made, {
		Name: "isolation of the code", Detail: "this driver has none",
		Remedy: "on Linux use the driver namespaces, which requires nothing to be installed; elsewhere run " +
			"gatehouse in a virtual machine",
	}}
}

// most are the highest limits that may be requested.
var most = func() sandbox.Limits {
	l := sandbox.Defaults()
	l.MemoryMiB, l.VCPUs, l.Processes, l.DiskMiB, l.Descriptors = 1<<20, 1024, 1<<16, 1<<20, 1<<16
	l.OutputBytes, l.Call = 1<<30, 24*60*60*1e9
	return l
}()

// Create creates a folder. Trees need no setup, because the code sees the whole host.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := spec.Limits.Within(most)
	if err != nil {
		return nil, err
	}
	if spec.Image != nil || spec.Strict {
		return nil, errors.New("the driver process supports neither images nor profiles of system calls: use " +
			"the driver namespaces")
	}
	for _, t := range spec.Trees {
		if t.To != "" && t.To != t.From {
			return nil, fmt.Errorf("the driver process cannot mount %s at another path: its code sees the "+
				"host's files where they are", t.From)
		}
	}
	b, err := d.makeInstance(limits, spec.Env)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return b, nil
}

func (d *Driver) makeInstance(limits sandbox.Limits, env []string) (*instance, error) {
	home, err := os.MkdirTemp(d.o.Folder, "gatehouse-sandbox-")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(home))
	}
	b := newInstance(d, home, root, limits, env)
	if err := d.instances.Add(b); err != nil {
		return nil, errors.Join(err, root.Close(), os.RemoveAll(home))
	}
	return b, nil
}

// Close closes every sandbox.
func (d *Driver) Close() error { return d.instances.CloseAll() }
