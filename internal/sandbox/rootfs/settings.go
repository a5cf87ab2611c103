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

// Settings holds the settings that a sandbox's driver was last asked for and sends them to the agent. It
// implements Adjustable and Networked for the driver. A driver also locks it while the agent must not be
// called, for instance while a machine is stopped or saved.
type Settings struct {
	sync.Mutex
	Limits   sandbox.Limits
	ImageEnv []string // variables of the image
	Env      []string // requested variables, which follow those of the image
	Port     int64    // port of the egress proxy; 0 while there is none

	// Bounds returns the part of a plan that can be changed later.
	Bounds func(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan
}

// Plan returns the plan for the current settings. The caller holds the lock, or no other goroutine has the
// value yet.
func (a *Settings) Plan() agentprotocol.Plan { return a.plan(a.Limits, a.Env, a.Port) }

func (a *Settings) plan(limits sandbox.Limits, env []string, port int64) agentprotocol.Plan {
	return a.Bounds(slices.Concat(a.ImageEnv, env), limits, port)
}

// Adjust changes the limits and variables. hold returns the limits that will be in force and enforces them
// outside the sandbox; if it fails, nothing is changed.
func (a *Settings) Adjust(
	ctx context.Context,
	l *agentclient.Client,
	limits sandbox.Limits,
	env []string,
	hold func(sandbox.Limits) (sandbox.Limits, error),
) error {
	limits, err := InForce(limits)
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

// SetNetwork opens or closes network access, and updates the environment of programs.
func (a *Settings) SetNetwork(ctx context.Context, l *agentclient.Client, d *egress.Server, n sandbox.Network) error {
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
