package manager

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/sandbox"
)

// mostDecisions is how many decisions on ways out are remembered of a sandbox,
// the newest.
const mostDecisions = 100

// wayOut is what a sandbox may reach, and what was said to those who tried.
type wayOut struct {
	setting chan struct{} // takes one while the driver is told, so that rules are what it was told last; before mu

	mu    sync.Mutex
	rules sandbox.Network
	env   []string          // NAME=placeholder, of the secrets
	marks map[string]string // placeholders by the names of their secrets, as long as the sandbox lives
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

// Secret is one that requests of a sandbox may carry, by the name of the
// variable in which its code finds the placeholder.
type Secret struct {
	Value secret.Text
	Hosts []string // rules for where it may go
}

// SetNetwork replaces what the sandbox may reach; see sandbox.Networked. Only
// Allow, Special and Deny are taken of n. What waits to run code is started again, with
// the way out in its environment; contexts keep what they began with. Of the
// secrets only placeholders get in, as variables of what is run from now on.
func (b *Box) SetNetwork(ctx context.Context, n sandbox.Network, secrets map[string]Secret) error {
	out, ok := b.Sandbox.(sandbox.Networked)
	if !ok {
		return unsupported(b, "have no way out")
	}
	select {
	case b.out.setting <- struct{}{}:
		defer func() { <-b.out.setting }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	n = sandbox.Network{Allow: n.Allow, Special: n.Special, Deny: n.Deny, Decided: b.decided}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		mark := b.out.mark(name)
		n.Secrets = append(n.Secrets, sandbox.Secret{Placeholder: mark, Value: secrets[name].Value, Hosts: secrets[name].Hosts})
		env = append(env, name+"="+mark)
	}
	if err := out.SetNetwork(ctx, n); err != nil {
		return err
	}
	b.out.mu.Lock()
	b.out.rules, b.out.env = n, env
	b.out.mu.Unlock()
	for name, s := range secrets {
		b.tell(sandbox.Decision{
			Allowed: true, Way: "secret", Target: name, Rule: strings.Join(s.Hosts, ", "),
			Reason: "requests to these hosts may carry the secret of this variable; the sandbox has a placeholder",
		})
	}
	b.starting.Lock()
	defer b.starting.Unlock()
	b.turn++
	if b.python != nil {
		go b.python.Close()
		b.python = nil
	}
	if b.node != nil {
		go b.node.Close()
		b.node = nil
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
	b.tell(d)
}

// mark is the placeholder of a secret, which nobody can guess and which stays.
func (w *wayOut) mark(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.marks == nil {
		w.marks = map[string]string{}
	}
	if w.marks[name] == "" {
		w.marks[name] = "secret-" + rand.Text()
	}
	return w.marks[name]
}

// with puts the placeholders of secrets before an environment.
func (b *Box) with(env []string) []string {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return slices.Concat(b.out.env, env)
}

// tell tells the fact that something was decided.
func (b *Box) tell(d sandbox.Decision) {
	principal, context := split(b.Owner())
	b.manager.o.Tell("sandbox.network", decided{b.ID, principal, context, d.Allowed, d.Way, d.Target, d.Address, d.Rule, d.Reason})
}

// Network tells the rules that hold and the newest decisions; lost is how many
// there were before.
func (b *Box) Network() (rules sandbox.Network, said []sandbox.Decision, lost int) {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return b.out.rules, slices.Clone(b.out.said), b.out.lost
}

// Placeholders are those of the secrets that were ever to be swapped in, by
// the names of their variables.
func (b *Box) Placeholders() map[string]string {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return maps.Clone(b.out.marks)
}
