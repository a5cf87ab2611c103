package manager

import (
	"context"
	"errors"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/kernel"
)

// priming makes the sandboxes of the pool: as the driver does, and with an
// interpreter that waits for its first code.
type priming struct{ m *Manager }

// primed is one of them.
type primed struct {
	sandbox.Sandbox
	python *kernel.Forker // nil where none could be started
	limits sandbox.Limits // it was started with
}

func (p priming) Name() string { return "pool" }

func (p priming) Capabilities() (c sandbox.Capabilities) {
	if d, err := p.m.Driver(); err == nil {
		c = d.Capabilities()
	}
	return c
}

func (p priming) Doctor(ctx context.Context) []sandbox.Finding {
	d, err := p.m.Driver()
	if err != nil {
		return []sandbox.Finding{{Name: "driver", Needed: true, Detail: err.Error()}}
	}
	return d.Doctor(ctx)
}

// Create makes one. What cannot be made ready is handed out all the same: its
// first call only takes longer. Nor is one that somebody waits for.
func (p priming) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	d, err := p.m.Driver()
	if err != nil {
		return nil, err
	}
	s, err := d.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	one := primed{Sandbox: s, limits: s.Limits()}
	if ctx == p.m.life { // the pool's own, see Serve
		if one.python, err = kernel.StartForker(ctx, s); err != nil {
			p.m.o.Log.Debug("no interpreter waits in a sandbox of the pool", "error", err)
		}
	}
	return one, nil
}

// Close does nothing: the driver is the manager's.
func (p priming) Close() error { return nil }

// Adjust is that of the sandbox, if it has one.
func (s primed) Adjust(ctx context.Context, l sandbox.Limits, env []string) error {
	if a, ok := s.Sandbox.(sandbox.Adjustable); ok {
		return a.Adjust(ctx, l, env)
	}
	return errors.New("sandboxes of this driver stay as they are made")
}
