// Package process runs code as processes of the host, with no wall around it.
//
// It is for platforms where no other driver works and for people who know what
// they run. A call gets a folder and an environment of its own and ends with
// all that came of it; nothing else is held back: the code may do whatever the
// host's user may. It has to be asked for by a flag that says so.
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

// Name is what the driver is called.
const Name = "process"

// ErrNotAsked is what New returns without Options.Unsafe.
var ErrNotAsked = errors.New("the driver process holds nothing back: code it runs may do whatever the host's user may. It is used only where its unsafe setting says that this is wanted")

// Options are for New.
type Options struct {
	Unsafe bool // it is known that nothing is held back; needed
	// Folder is where sandboxes get their folders; "" means the system's place for temporary
	// files. Tests set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

// Driver makes sandboxes that hold nothing. Whoever makes one calls Close.
type Driver struct {
	o     Options
	boxes sandbox.Living[*box]
}

// New makes a driver, if that is really wanted.
func New(o Options) (*Driver, error) {
	if !o.Unsafe {
		return nil, ErrNotAsked
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{o: o}, nil
}

// Name is that of the driver.
func (d *Driver) Name() string { return Name }

// Capabilities are next to none.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Tier: sandbox.NoWall, Memory: sandbox.NotHeld, Processes: sandbox.NotHeld, CPU: sandbox.NotHeld,
		Terminals: runtime.GOOS != "windows",
	}
}

// Doctor says that there is no wall, and whether a folder can be made.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	made := sandbox.Finding{Name: "a folder is made for a sandbox", Needed: true, OK: true}
	if b, err := d.make(sandbox.Defaults(), nil); err != nil {
		made.OK, made.Detail, made.Remedy = false, err.Error(), "name another folder for temporary files by TMPDIR"
	} else {
		made.Detail = b.home
		b.Close()
	}
	return []sandbox.Finding{made, {
		Name: "a wall around the code", Detail: "this driver has none",
		Remedy: "on Linux use the driver namespaces, which needs nothing installed; elsewhere run gatehouse in a virtual machine",
	}}
}

// most is what may be asked for.
var most = func() sandbox.Limits {
	l := sandbox.Defaults()
	l.MemoryMiB, l.VCPUs, l.Processes, l.DiskMiB, l.Descriptors = 1<<20, 1024, 1<<16, 1<<20, 1<<16
	l.OutputBytes, l.Call = 1<<30, 24*60*60*1e9
	return l
}()

// Create makes a folder. Trees are of no use where the whole host is seen.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	limits, err := spec.Limits.Within(most)
	if err != nil {
		return nil, err
	}
	if spec.Image != nil || spec.Strict {
		return nil, errors.New("the driver process has neither images nor profiles of system calls: use the driver namespaces")
	}
	for _, t := range spec.Trees {
		if t.To != "" && t.To != t.From {
			return nil, fmt.Errorf("the driver process cannot show %s at another place: its code sees the host's files where they are", t.From)
		}
	}
	b, err := d.make(limits, spec.Env)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	return b, nil
}

func (d *Driver) make(limits sandbox.Limits, env []string) (*box, error) {
	home, err := os.MkdirTemp(d.o.Folder, "gatehouse-sandbox-")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(home))
	}
	b := newBox(d, home, root, limits, env)
	if err := d.boxes.Add(b); err != nil {
		return nil, errors.Join(err, root.Close(), os.RemoveAll(home))
	}
	return b, nil
}

// Close ends every sandbox that is left.
func (d *Driver) Close() error { return d.boxes.CloseAll() }
