package app

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/sandbox/manager"
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
		Rules:    a.rules, HasLabels: a.nodes.hasLabels,
		Opened: a.sandboxesOpened,
		Stream: a.outputStream(),
	}
	if cache := a.cfg.Folders.Cache; cache != "" {
		c.Folder = filepath.Join(cache, "snapshots")
	}
	a.sandboxImages(&c)
	return c, nil
}

// sandboxesOpened makes the sandboxes known to the live tree and to the module code.
func (a *App) sandboxesOpened(m *manager.Manager) {
	open := m.All
	a.tree.listSandboxes.Store(&open)
	a.boxes.Store(m)
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
	Node      string    `json:"node,omitempty"` // of the cluster
}

func seesSandbox(who tool.Caller) func(string, any) bool { return seesProcess(who) }

// sandboxesNow returns the open sandboxes.
func (l *liveTree) sandboxesNow() map[string]sandboxState {
	all := map[string]sandboxState{}
	if list := l.listSandboxes.Load(); list != nil {
		for _, b := range (*list)() {
			if len(all) == mostRunning {
				break
			}
			all[b.ID] = sandboxState{
				b.Owner(), b.Driver, b.Tier.String(), b.Warm, b.Created.UTC(), l.app.nodeName(),
			}
		}
	}
	return all
}
