package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/notifier"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/administration"
	"gatehouse/internal/modules/standard"
	"gatehouse/tool"
)

// settingsInForce holds the current settings: those that the host was started with, and later changes that a
// running host can apply.
type settingsInForce struct {
	mu  sync.Mutex // held while new settings are applied
	now config.Config
}

// Reload applies new settings, as far as a running host can: its contexts, rules and default view. Sessions
// continue; clients whose lists changed are notified. live are the settings that changed, restart those that
// differ and apply only after a restart. After an error nothing has changed.
func (a *App) Reload(cfg config.Config) (live, restart []string, err error) {
	a.settings.mu.Lock()
	defer a.settings.mu.Unlock()
	live, restart = config.Differences(a.settings.now, cfg)
	next := a.settings.now
	next.Contexts, next.Rules, next.Log.Level, next.Packages = cfg.Contexts, cfg.Rules, cfg.Log.Level, cfg.Packages
	next.Roots.Client, next.Roots.Fixed = cfg.Roots.Client, cfg.Roots.Fixed
	next.View.Context, next.View.Tools, next.View.ReadOnly = cfg.View.Context, cfg.View.Tools, cfg.View.ReadOnly
	next.Limits.Rate, next.Limits.Burst = cfg.Limits.Rate, cfg.Limits.Burst
	fixed, err := a.fixedContexts(next)
	if err != nil {
		return nil, nil, err
	}
	if err := checkDefault(next.View.Context, &fixed, a.contextStore.Current()); err != nil {
		return nil, nil, err
	}
	fixed.Policy.Host, fixed.Policy.CannotStage, fixed.Policy.Unattended = a.resolver(), a.cannotStage, a.unattended()
	fixed.Policy.Unstageable = unstageable(a.cfg.Stage.Network)
	if err := a.contexts.SetFixed(fixed); err != nil {
		return nil, nil, &SettingError{err}
	}
	if a.manager != nil && slices.Contains(live, "packages") {
		a.manager.Declare(next.Packages)
	}
	a.narrower.Set(clientRootSettings(next))
	rates := limits(next)
	a.limits.Rates.Set(rates.Rate, rates.Burst)
	a.pacing.Store(next.Limits.Rate != nil)
	a.settings.now = next
	a.publish(string(notifier.ConfigChanged), notifier.ChangedSettings{Live: live, Restart: restart})
	return live, restart, nil
}

// limits returns the settings of the rate limiter. The rate applies to every listener; by default there is no rate
// on a host that only this machine can reach.
func limits(cfg config.Config) limit.Options {
	l := cfg.Limits
	o := limit.Options{
		Burst:   l.Burst,
		Calls:   l.Calls,
		Session: l.CallsSession,
		Tool:    l.CallsTool,
		Waiting: l.CallsWaiting,
		Bytes:   l.Bytes,
		Message: int64(l.Message),
		Streams: l.Streams,
	}
	d := cfg.Listen
	beyond := d.HTTP.Open && !config.Loopback(d.HTTP.Host) || d.TCP != "" && !config.LoopbackAddr(d.TCP)
	switch {
	case l.Rate != nil:
		o.Rate = *l.Rate
	case beyond:
		o.Rate = limit.DefaultRate
	}
	return o
}

// named returns the modules that settings name. Contexts of a file may name standard modules that are not served
// by default.
func named(cfg config.Config, o Options) []string {
	names := slices.Clone(cfg.View.Modules)
	if len(names) > 0 || len(cfg.Contexts) == 0 {
		return names
	}
	for _, g := range standard.Modules(standard.Deps{}) {
		asked := slices.ContainsFunc(
			cfg.Contexts,
			func(c config.Context) bool { return slices.Contains(c.Modules, g.Name) },
		)
		if asked || g.Default && !o.Bare {
			names = append(names, g.Name)
		}
	}
	return names
}

// CheckSettings reports mistakes that config.Validate cannot find: modules and contexts that do not exist. A
// mistake is a *SettingError. The only file it opens is that of the contexts that were created at run time, if
// there is one.
func CheckSettings(cfg config.Config) error {
	enabled, err := chooseModules(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err == nil {
		err = checkView(cfg.View)
	}
	var fixed contextstore.Fixed
	if err == nil {
		fixed, err = fixedContexts(cfg, enabled)
	}
	for i, c := range cfg.Contexts {
		if c.Name == contextstore.Admin && err == nil {
			err = &config.SettingProblem{Path: fmt.Sprintf("contexts[%d].name", i), Err: fmt.Errorf(
				"%q is the context in which this host is administered: settings of it have no effect and cannot "+
					"admit callers; choose another name",
				c.Name,
			)}
		}
	}
	if err == nil && cfg.View.Context != "" {
		err = checkDefault(cfg.View.Context, &fixed, madeContexts(cfg.Folders))
	}
	if err == nil {
		err = checkRenames(cfg, enabled)
	}
	if _, invalid := errors.AsType[*SettingError](err); err == nil || invalid {
		return err
	}
	return &SettingError{err}
}

// ContextNames returns the contexts that callers of a host with these settings may use: those of the settings
// first, then those that were created at run time, and the administration last.
func ContextNames(cfg config.Config) ([]string, error) {
	enabled, err := chooseModules(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err != nil {
		return nil, err
	}
	fixed, err := fixedContexts(cfg, enabled)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range fixed.Specs {
		if s.Name != contextstore.Admin {
			names = append(names, s.Name)
		}
	}
	for _, r := range madeContexts(cfg.Folders).Records {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return append(names, contextstore.Admin), nil
}

// madeContexts returns the contexts that were created at run time. It returns none if their file does not exist or
// cannot be read, which the host itself reports when it starts.
func madeContexts(f config.Folders) *contextstore.Snapshot {
	none := &contextstore.Snapshot{}
	path := ContextsFile(f)
	if _, err := os.Stat(path); path == "" || err != nil {
		return none
	}
	b, err := contextstore.Open(
		path,
		contextstore.Options{Log: slog.New(slog.DiscardHandler), Fixed: func(string) bool { return false }},
	)
	if err != nil {
		return none
	}
	defer b.Close()
	return b.Current()
}

// fixedContexts returns the contexts of this host with settings.
func (a *App) fixedContexts(cfg config.Config) (contextstore.Fixed, error) {
	if a.opts.Alone == nil {
		return fixedContexts(cfg, a.enabled)
	}
	policy, err := cfg.Permit()
	if err != nil {
		return contextstore.Fixed{}, &SettingError{err}
	}
	return contextstore.Fixed{Specs: []views.Spec{aloneSpec(cfg.View.Tools)}, Policy: policy}, nil
}

// fixedContexts returns the contexts of the settings: those of the file, if it has any, or else one with
// everything and one for each module.
func fixedContexts(cfg config.Config, enabled []enabledModule) (contextstore.Fixed, error) {
	v := cfg.View
	policy, err := cfg.Permit()
	if err != nil {
		return contextstore.Fixed{}, &SettingError{err}
	}
	f := contextstore.Fixed{
		Default: v.Context,
		Modules: defaultModules(enabled),
		Admin:   adminModules(enabled),
		Policy:  policy,
		Cluster: cfg.Cluster.Name != "",
	}
	if len(cfg.Contexts) == 0 {
		f.Specs = specs(v, enabled)
		return f, nil
	}
	for i, c := range cfg.Contexts {
		if err := knownModules(c.Modules, enabled, fmt.Sprintf("contexts[%d].modules", i)); err != nil {
			return f, err
		}
		f.Specs = append(f.Specs, spec(c, enabled))
		own := contextstore.Definition{Env: c.Env, Limits: contextstore.Limits(c.Limits)}
		if r := (contextstore.Record{Name: c.Name, Definition: own}); len(c.Env)+len(c.Roots) > 0 ||
			c.Limits != (config.ContextLimits{}) {
			for _, path := range c.Roots {
				r.Roots = append(r.Roots, contextstore.Root{Path: path})
			}
			f.Records = append(f.Records, r)
		}
	}
	return f, nil
}

// adminModules are those of the context in which a host is administered.
func adminModules(enabled []enabledModule) []string {
	names := append([]string{contextModule, sshModule, metricsModule}, administration.Names...)
	if slices.ContainsFunc(enabled, func(g enabledModule) bool { return g.Name == packageModule }) {
		names = append(names, packageModule)
	}
	return names
}

func spec(c config.Context, enabled []enabledModule) views.Spec {
	modules := c.Modules
	if modules == nil {
		modules = defaultModules(enabled)
	}
	return views.Spec{
		Name: c.Name, Description: c.Description, Modules: modules, Tools: c.Tools, Prompts: c.Prompts,
		Resources: c.Resources,
		Rename:    c.Rename, Describe: c.Describe, Shapes: c.Shape, Style: views.Style(c.Style), Aliases: c.Aliases,
		Results: c.Results, List: c.List, Pinned: c.Pinned, ProgramsAsk: c.ProgramsAsk, Team: c.Team,
		Labels: c.Labels,
	}
}

// knownModules returns an error if a name is not that of a module of this host.
func knownModules(names []string, enabled []enabledModule, path string) error {
	for _, name := range names {
		if !slices.ContainsFunc(enabled, func(g enabledModule) bool { return g.Name == name }) {
			var known []string
			for _, g := range enabled {
				known = append(known, g.Name)
			}
			return &SettingError{
				&config.SettingProblem{
					Path: path,
					Err: fmt.Errorf(
						"this host has no module %q; expected some of %s",
						name,
						strings.Join(known, ", "),
					),
				},
			}
		}
	}
	return nil
}

// checkRenames returns an error if the new name of a tool is that of another tool of the same context, because one
// of the two would be left out, and one if the shape of a tool does not fit it. Modules that cannot be created
// without a host, and tools of packages, are skipped.
func checkRenames(cfg config.Config, enabled []enabledModule) error {
	if !slices.ContainsFunc(cfg.Contexts, func(c config.Context) bool { return len(c.Rename)+len(c.Shape) > 0 }) {
		return nil
	}
	ctx := context.Background()
	host := bareHost(ctx, enabled)
	defer host.Close(ctx)
	set := views.New(
		views.Options{
			Offers: host.Offers,
			Rules:  views.Rules{Policy: permit.Open(false)},
			Log:    slog.New(slog.DiscardHandler),
		},
	)
	for i, c := range cfg.Contexts {
		if len(c.Rename)+len(c.Shape) == 0 {
			continue
		}
		plain := c
		plain.Rename, plain.Shape = nil, nil
		set.Set(views.Rules{Policy: permit.Open(false), Specs: []views.Spec{spec(plain, enabled)}})
		v, _, err := set.Whole(ctx, &tool.Caller{Context: c.Name})
		if err != nil {
			continue
		}
		at, err := renameProblem(c, v)
		if err == nil {
			at, err = shapeProblem(c, v)
		}
		if err != nil {
			return &SettingError{&config.SettingProblem{Path: fmt.Sprintf("contexts[%d].%s", i, at), Err: err}}
		}
	}
	return nil
}

// renameProblem returns which new name is that of another tool of a view.
func renameProblem(c config.Context, v *views.View) (at string, err error) {
	for _, from := range slices.Sorted(maps.Keys(c.Rename)) {
		taken := v.Tool(c.Rename[from])
		if taken == nil || taken.Name == from || c.Rename[taken.Name] != "" ||
			!slices.ContainsFunc(v.Entries(views.Tools), func(e *views.Entry) bool { return e.Name == from }) {
			continue
		}
		return "rename." + from, fmt.Errorf(
			"%s is the name of another tool of this context; rename that one as well, or exclude it with !%s in tools",
			c.Rename[from],
			taken.Name,
		)
	}
	return "", nil
}

// shapeProblem returns which shape does not fit its tool, which would be left out.
func shapeProblem(c config.Context, v *views.View) (at string, err error) {
	for i := range c.Shape {
		for _, e := range v.Entries(views.Tools) {
			if e.Name != c.Shape[i].Tool {
				continue
			}
			if err := views.CheckShape(e, &c.Shape[i]); err != nil {
				return fmt.Sprintf("shape[%d]", i), fmt.Errorf("%s: %w", e.Name, err)
			}
		}
	}
	return "", nil
}

// bareHost returns a host with the modules that can be created without one, to read what they offer. The caller
// closes it.
func bareHost(ctx context.Context, enabled []enabledModule) *modulehost.Host {
	host := modulehost.NewHost(modulehost.Options{Bus: bus.New(), Log: slog.New(slog.DiscardHandler)})
	for _, g := range enabled {
		if i := slices.IndexFunc(standard.Modules(standard.Deps{}),
			func(s standard.Module) bool { return s.Name == g.Name }); i >= 0 {
			host.Add(
				ctx,
				g.Name,
				standard.Modules(standard.Deps{})[i].New,
			) // the module reports its error when the host starts
		}
	}
	return host
}

// checkDefault returns an error if the default context is invalid.
func checkDefault(name string, fixed *contextstore.Fixed, stored *contextstore.Snapshot) error {
	if name == "" || name != contextstore.Admin && fixed.Has(name) || stored.Find(name) != nil {
		return nil
	}
	var names []string
	for _, s := range fixed.Specs {
		names = append(names, s.Name)
	}
	for _, r := range stored.Records {
		names = append(names, r.Name)
	}
	return &SettingError{
		&config.SettingProblem{
			Path: "view.context",
			Err:  fmt.Errorf("there is no context %q; expected one of %s", name, strings.Join(names, ", ")),
		},
	}
}
