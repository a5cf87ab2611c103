package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/sandbox"
)

// mostDecisions is how many decisions on ways out are remembered of a sandbox,
// the newest.
const mostDecisions = 100

// wayOut is what a sandbox may reach, and what was said to those who tried.
type wayOut struct {
	mu    sync.Mutex
	rules sandbox.Network
	said  []sandbox.Decision
	lost  int // decisions that are not remembered any more
}

// decided is the fact that is told of each decision.
type decided struct {
	ID        string `json:"id"`
	Principal string `json:"principal"`
	Context   string `json:"context"`
	Allowed   bool   `json:"allowed"`
	Way       string `json:"way"`
	Target    string `json:"target"`
	Address   string `json:"address,omitempty"`
	Rule      string `json:"rule,omitempty"`
	Reason    string `json:"reason"`
}

// SetNetwork replaces what the sandbox may reach; see sandbox.Networked. Only
// Allow and Deny are taken of n. What waits to run code is started again, with
// the way out in its environment; contexts keep what they began with.
func (b *Box) SetNetwork(ctx context.Context, n sandbox.Network) error {
	out, ok := b.Sandbox.(sandbox.Networked)
	if !ok {
		return fmt.Errorf("sandboxes of the driver %s have no way out", b.Driver)
	}
	n = sandbox.Network{Allow: n.Allow, Deny: n.Deny, Decided: b.decided}
	if err := out.SetNetwork(ctx, n); err != nil {
		return err
	}
	b.out.mu.Lock()
	b.out.rules = n
	b.out.mu.Unlock()
	b.starting.Lock()
	defer b.starting.Unlock()
	if b.python != nil {
		b.python.Close()
		b.python = nil
	}
	return nil
}

func (b *Box) decided(d sandbox.Decision) {
	b.out.mu.Lock()
	if len(b.out.said) == mostDecisions {
		b.out.said, b.out.lost = slices.Delete(b.out.said, 0, 1), b.out.lost+1
	}
	b.out.said = append(b.out.said, d)
	b.out.mu.Unlock()
	principal, context := "", b.Owner
	if i := strings.LastIndexByte(b.Owner, '/'); i >= 0 {
		principal, context = b.Owner[:i], b.Owner[i+1:]
	}
	b.manager.o.Tell("sandbox.network", decided{b.ID, principal, context, d.Allowed, d.Way, d.Target, d.Address, d.Rule, d.Reason})
}

// Network tells the rules that hold and the newest decisions; lost is how many
// there were before.
func (b *Box) Network() (rules sandbox.Network, said []sandbox.Decision, lost int) {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return b.out.rules, slices.Clone(b.out.said), b.out.lost
}
