package app

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// sandboxModule is the module that runs untrusted code.
const sandboxModule = "sandbox"

func (a *App) sandboxDeps() (c sandbox.Config, err error) {
	s := a.cfg.Modules.Sandbox
	s.TotalMemory = cmp.Or(s.TotalMemory, manager.MachineMiB())
	s.PrincipalMemory = cmp.Or(s.PrincipalMemory, s.TotalMemory*3/4)
	c = sandbox.Config{
		Settings: s, Secrets: a.sandboxSecrets, Claim: claims("sandboxes", cmp.Or(s.Most, manager.DefaultMost)),
		Ladder: SandboxDrivers(s.Ladder(), s, a.cfg.Folders.Cache, a.log), Templates: sandboxTemplates(s),
		Original: func(context string) bool { return a.specOf(context).Aliases },
		Served:   a.untilSandboxesAreServed,
		Rules:    a.rules,
	}
	if cache := a.cfg.Folders.Cache; cache != "" {
		c.Folder = filepath.Join(cache, "snapshots")
	}
	a.sandboxImages(&c)
	return c, nil
}

// sandboxSecrets returns the secrets that the proxy may insert into a caller's requests from sandboxes: the
// variables of its context that refer to one secret, if the settings name the hosts it may be sent to.
func (a *App) sandboxSecrets(who tool.Caller) (map[string]manager.Secret, error) {
	hosts := map[string][]string{}
	for _, s := range a.cfg.Modules.Sandbox.Secrets {
		hosts[s.Name] = s.Hosts
	}
	refers := map[string]string{} // variables, and the secret of each
	for name, value := range a.contexts.Variables(who.Context) {
		if of, err := secret.Names(value); err == nil && len(of) == 1 && hosts[of[0]] != nil {
			refers[name] = of[0]
		}
	}
	if len(refers) == 0 {
		return nil, nil
	}
	env, err := a.contexts.Environment(who)
	if err != nil {
		return nil, err
	}
	all := map[string]manager.Secret{}
	for name, of := range refers {
		if value, there := env.Secret[name]; there {
			all[name] = manager.Secret{Value: value, Hosts: hosts[of]}
		}
	}
	return all, nil
}

// specOf returns the context of that name, or the default one.
func (a *App) specOf(name string) views.Spec {
	rules := a.views.Rules()
	if name == "" {
		name = rules.Default
	}
	if i := slices.IndexFunc(rules.Specs, func(s views.Spec) bool { return s.Name == name }); i >= 0 {
		return rules.Specs[i]
	}
	return views.Spec{}
}

// untilSandboxesAreServed waits for a session in a context that offers sandboxes. Callers without sessions are
// noticed at their first call.
func (a *App) untilSandboxesAreServed(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, in := range protocol.SessionCreated.Follow(ctx, a.bus, factQueue) {
		if slices.Contains(a.specOf(in.Context).Modules, sandboxModule) {
			return
		}
	}
}

// sandboxState is a member of /public/sandboxes: a running sandbox.
type sandboxState struct {
	Owner     string    `json:"owner"`
	Driver    string    `json:"driver"`
	Isolation string    `json:"isolation"`
	FromPool  bool      `json:"fromPool,omitempty"`
	Created   time.Time `json:"created"`
}

func seesSandbox(who tool.Caller) func(string, any) bool { return seesProcess(who) }

// sandboxEvents follows the events of sandboxes. A sandbox whose end was published before its start is not shown.
type sandboxEvents struct {
	all   map[string]sandboxState
	fresh map[string]*sandboxState // to be written; nil for those that have ended
	ended map[string]struct{}
}

func newShowSandboxes() sandboxEvents {
	return sandboxEvents{map[string]sandboxState{}, map[string]*sandboxState{}, map[string]struct{}{}}
}

func (s *sandboxEvents) handleEvent(fact bus.Event) {
	d, ok := bus.Decode[manager.Event](fact)
	if !ok || d.ID == "" {
		return
	}
	_, early := s.ended[d.ID]
	_, there := s.all[d.ID]
	switch created := fact.Subject == "module.sandbox.sandbox.created"; {
	case fact.Subject == "module.sandbox.sandbox.handed_over":
		if one, there := s.all[d.ID]; there {
			one.Owner = d.Owner
			s.all[d.ID], s.fresh[d.ID] = one, &one
		}
	case created && early:
		delete(s.ended, d.ID)
	case created && len(s.all) < mostRunning:
		one := sandboxState{d.Owner, d.Driver, d.Tier, d.FromPool, fact.At.UTC()}
		s.all[d.ID], s.fresh[d.ID] = one, &one
	case !created && there:
		delete(s.all, d.ID)
		s.fresh[d.ID] = nil
	case !created && len(s.ended) < mostRunning:
		s.ended[d.ID] = struct{}{}
	}
}

func (s *sandboxEvents) writeState(ctx context.Context, t *liveTree) {
	if err := state.Merge(ctx, t.sandboxes, s.fresh); err != nil && ctx.Err() == nil {
		t.app.log.Warn("sandboxes are not shown", "err", err)
	}
	clear(s.fresh)
}
