package manager

import (
	"context"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
)

// priming makes the sandboxes of a pool: as the driver does, and with an interpreter that waits for code.
type priming struct {
	m *Manager
	sandbox.Driver
	scripts *atomic.Bool // sandboxes of this template have run JavaScript
}

// primed is a sandbox of a pool.
type primed struct {
	sandbox.Sandbox
	python *interpreter.Forker  // nil if it could not be started
	node   *interpreter.Starter // nil if it could not be started or JavaScript is not used
	limits sandbox.Limits       // limits it was started with
}

func (p primed) unwrap() primed { return p }

// primedAdjustable is a primed that can be adjusted.
type primedAdjustable struct {
	primed
	sandbox.Adjustable
}

// Create makes a sandbox. If no interpreter can be started, the sandbox is still returned: its first call only
// takes longer. None is started for a sandbox that a caller waits for.
func (p priming) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := p.Driver.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	one := primed{Sandbox: s, limits: s.Limits()}
	if ctx == p.m.life { // the pool's own context, see Serve
		if one.python, err = interpreter.StartForker(ctx, s); err != nil {
			p.m.o.Log.Debug("no interpreter waits in a sandbox of the pool", "error", err)
		} else {
			// The first run takes longer than any other.
			one.python.Run(ctx, interpreter.Code{Source: "pass", Timeout: 10 * time.Second})
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

// Close does nothing: the manager owns the driver.
func (p priming) Close() error { return nil }
