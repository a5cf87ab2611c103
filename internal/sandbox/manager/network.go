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

// mostDecisions is how many of the newest network decisions of a sandbox are kept.
const mostDecisions = 100

// networkAccess is what a sandbox may reach, and the decisions about attempts.
type networkAccess struct {
	// Holds one element during the driver's SetNetwork, so that rules are always those last set; locked before
	// mu.
	setting chan struct{}

	mu    sync.Mutex
	rules sandbox.Network
	env   []string          // NAME=placeholder, of the secrets
	marks map[string]string // placeholders by the names of their secrets; constant while the sandbox lives
	said  []sandbox.Decision
	lost  int // decisions that are no longer kept
}

// networkDecision is the event published for each decision.
type networkDecision struct {
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

// Secret is a secret that requests of a sandbox may carry. Its key is the name of the variable that contains
// the placeholder.
type Secret struct {
	Value secret.Text
	Hosts []string // rules for the hosts it may be sent to
}

// SetNetwork replaces what the sandbox may reach; see sandbox.Networked. Only Allow, Special and Deny of n are
// used. Waiting interpreters are started again with the proxy in their environment; contexts keep their
// environment. Of the secrets only placeholders enter the sandbox, as variables of programs started from now
// on.
func (b *Box) SetNetwork(ctx context.Context, n sandbox.Network, secrets map[string]Secret) error {
	out, ok := b.Sandbox.(sandbox.Networked)
	if !ok {
		return unsupported(b, "have no network access")
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
		n.Secrets = append(n.Secrets, sandbox.Secret{
			Placeholder: mark,
			Value:       secrets[name].Value,
			Hosts:       secrets[name].Hosts,
		})
		env = append(env, name+"="+mark)
	}
	if err := out.SetNetwork(ctx, n); err != nil {
		return err
	}
	b.out.mu.Lock()
	b.out.rules, b.out.env = n, env
	b.out.mu.Unlock()
	for name, s := range secrets {
		b.publishDecision(sandbox.Decision{
			Allowed: true, Method: "secret", Target: name, Rule: strings.Join(s.Hosts, ", "),
			Reason: "requests to these hosts may carry the secret of this variable; the sandbox contains a placeholder",
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
	b.publishDecision(d)
}

// mark returns the placeholder of a secret, which cannot be guessed and does not change.
func (n *networkAccess) mark(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.marks == nil {
		n.marks = map[string]string{}
	}
	if n.marks[name] == "" {
		n.marks[name] = "secret-" + rand.Text()
	}
	return n.marks[name]
}

// with puts the placeholders of secrets before an environment.
func (b *Box) with(env []string) []string {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return slices.Concat(b.out.env, env)
}

// publishDecision publishes a decision.
func (b *Box) publishDecision(d sandbox.Decision) {
	principal, context := split(b.Owner())
	b.manager.o.Publish("sandbox.network", networkDecision{b.ID, principal, context, d.Allowed, d.Method, d.Target,
		d.Address, d.Rule, d.Reason})
}

// Network returns the rules in force and the newest decisions; lost is how many earlier ones are no longer
// kept.
func (b *Box) Network() (rules sandbox.Network, said []sandbox.Decision, lost int) {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return b.out.rules, slices.Clone(b.out.said), b.out.lost
}

// Placeholders returns the placeholders of all secrets ever set, by the names of their variables.
func (b *Box) Placeholders() map[string]string {
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	return maps.Clone(b.out.marks)
}
