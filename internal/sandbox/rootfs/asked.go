//go:build linux

package rootfs

import (
	"context"
	"slices"
	"sync"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/egress"
)

// Asked is what a sandbox was last asked to be like, and how its agent is told:
// the Adjustable and the Networked of its driver. A driver also locks it while
// nothing is to be told, such as when a machine is stopped or kept.
type Asked struct {
	sync.Mutex
	Limits sandbox.Limits
	Look   []string // variables of the image
	Env    []string // and after them what was asked for
	Port   int64    // of the way out; 0 while there is none

	// Bounds is the part of a plan that can be changed later.
	Bounds func(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan
}

// Plan is what follows from all of it. The caller holds the lock, or is the only
// one to have it yet.
func (a *Asked) Plan() agentprotocol.Plan { return a.plan(a.Limits, a.Env, a.Port) }

func (a *Asked) plan(limits sandbox.Limits, env []string, port int64) agentprotocol.Plan {
	return a.Bounds(slices.Concat(a.Look, env), limits, port)
}

// Adjust asks for other limits and variables. hold gives the limits that hold
// then, and sees to them outside; nothing is changed when it fails.
func (a *Asked) Adjust(ctx context.Context, l *agentclient.Link, limits sandbox.Limits, env []string, hold func(sandbox.Limits) (sandbox.Limits, error)) error {
	limits, err := Held(limits)
	if err != nil {
		return err
	}
	a.Lock()
	defer a.Unlock()
	if limits, err = hold(limits); err != nil {
		return err
	}
	if err := l.Adjust(ctx, a.plan(limits, env, a.Port), limits); err != nil {
		return err
	}
	a.Limits, a.Env = limits, env
	return nil
}

// SetNetwork opens or shuts the way out, and has programs be told of it.
func (a *Asked) SetNetwork(ctx context.Context, l *agentclient.Link, d *egress.Door, n sandbox.Network) error {
	return d.Set(n, func(port int64) error {
		a.Lock()
		defer a.Unlock()
		if err := l.Adjust(ctx, a.plan(a.Limits, a.Env, port), a.Limits); err != nil {
			return err
		}
		a.Port = port
		return nil
	})
}
