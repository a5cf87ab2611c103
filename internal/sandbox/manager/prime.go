package manager

import (
	"context"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
)

// priming makes the sandboxes of a pool: as the driver does, and with an
// interpreter that waits for its first code.
type priming struct {
	m *Manager
	sandbox.Driver
	scripts *atomic.Bool // some of this template have run JavaScript
}

// primed is one of them.
type primed struct {
	sandbox.Sandbox
	python *interpreter.Forker  // nil where none could be started
	node   *interpreter.Starter // the same, or where nobody runs JavaScript
	limits sandbox.Limits       // it was started with
}

func (p primed) unwrap() primed { return p }

// primedAdjustable is one that can be made another one.
type primedAdjustable struct {
	primed
	sandbox.Adjustable
}

// Create makes one. What cannot be made ready is handed out all the same: its
// first call only takes longer. Nor is one that somebody waits for.
func (p priming) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := p.Driver.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	one := primed{Sandbox: s, limits: s.Limits()}
	if ctx == p.m.life { // the pool's own, see Serve
		if one.python, err = interpreter.StartForker(ctx, s); err != nil {
			p.m.o.Log.Debug("no interpreter waits in a sandbox of the pool", "error", err)
		} else {
			one.python.Run(ctx, interpreter.Code{Source: "pass", Timeout: 10 * time.Second}) // the first time takes longer than any other
		}
	}
	if ctx == p.m.life && p.scripts.Load() && one.limits.MemoryMiB >= leastForNode {
		if one.node, err = interpreter.StartNode(ctx, s); err != nil {
			p.m.o.Log.Debug("no Node waits in a sandbox of the pool", "error", err)
		}
	}
	if a, ok := s.(sandbox.Adjustable); ok {
		return primedAdjustable{one, a}, nil
	}
	return one, nil
}

// Close does nothing: the driver is the manager's.
func (p priming) Close() error { return nil }
