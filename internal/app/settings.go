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
	"gatehouse/internal/modules/standard"
	"gatehouse/tool"
)

// settingsInForce are the settings as they are now: the ones a host was started with, and what it
// was told later and can follow.
type settingsInForce struct {
	mu  sync.Mutex // held while new ones are put in force
	now config.Config
}

// Reload puts new settings in force, as far as a running host can follow: its
// contexts, rules and default view. Sessions go on; clients whose lists are
// others now are told. live are the settings that changed, restart those
// that differ and will be looked at again at the next start. After an error
// everything is as it was.
func (a *App) Reload(cfg config.Config) (live, restart []string, err error) {
	a.settings.mu.Lock()
	defer a.settings.mu.Unlock()
	live, restart = config.Differences(a.settings.now, cfg)
	next := a.settings.now
	next.Contexts, next.Rules, next.Log.Level, next.Packages = cfg.Contexts, cfg.Rules, cfg.Log.Level, cfg.Packages
	next.Roots.Client, next.Roots.Fixed = cfg.Roots.Client, cfg.Roots.Fixed
	next.View.Context, next.View.Tools, next.View.ReadOnly = cfg.View.Context, cfg.View.Tools, cfg.View.ReadOnly
	next.Limits.Rate, next.Limits.Burst = cfg.Limits.Rate, cfg.Limits.Burst
	fixed, err := fixedContexts(next, a.guests)
	if err != nil {
		return nil, nil, err
	}
	if err := checkDefault(next.View.Context, &fixed, a.contextStore.Current()); err != nil {
		return nil, nil, err
	}
	fixed.Policy.Host = a.resolver()
	if err := a.contexts.SetFixed(fixed); err != nil {
		return nil, nil, &SettingError{err}
	}
	if a.house != nil && slices.Contains(live, "packages") {
		a.house.Declare(next.Packages)
	}
	a.narrower.Set(clientRootSettings(next))
	rates := limits(next)
	a.limits.Rates.Set(rates.Rate, rates.Burst)
	a.pacing.Store(next.Limits.Rate != nil)
	a.settings.now = next
	a.publish(string(notifier.ConfigChanged), notifier.ChangedSettings{Live: live, Restart: restart})
	return live, restart, nil
}

// limits are the settings of the room that slows callers down. The rate is
// that of every door: where only this machine can reach one, there is none
// unless it is set.
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
	d := cfg.Doors
	beyond := d.HTTP.Open && !config.Loopback(d.HTTP.Host) || d.TCP != "" && !config.LoopbackAddr(d.TCP)
	switch {
	case l.Rate != nil:
		o.Rate = *l.Rate
	case beyond:
		o.Rate = limit.DefaultRate
	}
	return o
}

// named are the modules that settings ask for by name. Contexts of a file may
// name more of the standard ones than are served unasked.
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

// CheckSettings says what config.Validate cannot know: which modules and
// contexts there are not. A mistake is a *SettingError. Nothing is opened but the
// file of the contexts that were made at run time, if there is one.
func CheckSettings(cfg config.Config) error {
	guests, err := choose(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err == nil {
		err = checkView(cfg.View)
	}
	var fixed contextstore.Fixed
	if err == nil {
		fixed, err = fixedContexts(cfg, guests)
	}
	for i, c := range cfg.Contexts {
		if c.Name == contextstore.Admin && err == nil {
			err = &config.SettingProblem{Path: fmt.Sprintf("contexts[%d].name", i), Err: fmt.Errorf(
				"%q is the context in which this host is administered: what is said of it here counts for nothing, and callers cannot be let in; choose another name",
				c.Name,
			)}
		}
	}
	if err == nil && cfg.View.Context != "" {
		err = checkDefault(cfg.View.Context, &fixed, madeContexts(cfg.Folders))
	}
	if err == nil {
		err = checkRenames(cfg, guests)
	}
	if _, told := errors.AsType[*SettingError](err); err == nil || told {
		return err
	}
	return &SettingError{err}
}

// ContextNames are the contexts that callers of a host with these settings may be
// in, those of the settings first and those that were made at run time after them,
// and the administration last.
func ContextNames(cfg config.Config) ([]string, error) {
	guests, err := choose(cfg, Options{}, standard.Modules(standard.Deps{}))
	if err != nil {
		return nil, err
	}
	fixed, err := fixedContexts(cfg, guests)
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

// madeContexts are the contexts that were made at run time; none where their file
// is not there or cannot be read, which the host itself says when it starts.
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

// fixedContexts are those of the settings: of the file, if it has some, or
// one with everything and one for each module.
func fixedContexts(cfg config.Config, guests []guest) (contextstore.Fixed, error) {
	v := cfg.View
	policy, err := cfg.Permit()
	if err != nil {
		return contextstore.Fixed{}, &SettingError{err}
	}
	f := contextstore.Fixed{
		Default: v.Context,
		Modules: defaultModules(guests),
		Admin:   adminModules(guests),
		Policy:  policy,
	}
	if len(cfg.Contexts) == 0 {
		f.Specs = specs(v, guests)
		return f, nil
	}
	for i, c := range cfg.Contexts {
		if err := knownModules(c.Modules, guests, fmt.Sprintf("contexts[%d].modules", i)); err != nil {
			return f, err
		}
		f.Specs = append(f.Specs, spec(c, guests))
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
func adminModules(guests []guest) []string {
	names := []string{contextModule, sshModule}
	if slices.ContainsFunc(guests, func(g guest) bool { return g.Name == packageModule }) {
		names = append(names, packageModule)
	}
	return names
}

func spec(c config.Context, guests []guest) views.Spec {
	modules := c.Modules
	if modules == nil {
		modules = defaultModules(guests)
	}
	return views.Spec{
		Name: c.Name, Description: c.Description, Modules: modules, Tools: c.Tools, Prompts: c.Prompts, Resources: c.Resources,
		Rename: c.Rename, Describe: c.Describe, Style: views.Style(c.Style), Aliases: c.Aliases, Results: c.Results,
	}
}

// knownModules says which of some names is no module of this host.
func knownModules(names []string, guests []guest, path string) error {
	for _, name := range names {
		if !slices.ContainsFunc(guests, func(g guest) bool { return g.Name == name }) {
			var known []string
			for _, g := range guests {
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

// checkRenames says which new name of a tool is that of another tool of the same
// context: one of the two would be left out. Modules that cannot be made without
// a host are passed over.
func checkRenames(cfg config.Config, guests []guest) error {
	if !slices.ContainsFunc(cfg.Contexts, func(c config.Context) bool { return len(c.Rename) > 0 }) {
		return nil
	}
	ctx := context.Background()
	host := bareHost(ctx, guests)
	defer host.Close(ctx)
	set := views.New(
		views.Options{
			Offers: host.Offers,
			Rules:  views.Rules{Policy: permit.Open(false)},
			Log:    slog.New(slog.DiscardHandler),
		},
	)
	for i, c := range cfg.Contexts {
		if len(c.Rename) == 0 {
			continue
		}
		plain := c
		plain.Rename = nil
		set.Set(views.Rules{Policy: permit.Open(false), Specs: []views.Spec{spec(plain, guests)}})
		v, _, err := set.Whole(ctx, &tool.Caller{Context: c.Name})
		if err != nil {
			continue
		}
		for _, from := range slices.Sorted(maps.Keys(c.Rename)) {
			taken := v.Tool(c.Rename[from])
			if taken == nil || taken.Name == from || c.Rename[taken.Name] != "" ||
				!slices.ContainsFunc(v.Entries(views.Tools), func(e *views.Entry) bool { return e.Name == from }) {
				continue
			}
			return &SettingError{&config.SettingProblem{Path: fmt.Sprintf("contexts[%d].rename.%s", i, from),
				Err: fmt.Errorf(
					"%s is the name of another tool of this context; rename that one as well, or exclude it with !%s in tools",
					c.Rename[from],
					taken.Name,
				)}}
		}
	}
	return nil
}

// bareHost has the modules that can be made without a host, to look at what they
// offer. The caller closes it.
func bareHost(ctx context.Context, guests []guest) *modulehost.Host {
	host := modulehost.NewHost(modulehost.Options{Bus: bus.New(), Log: slog.New(slog.DiscardHandler)})
	for _, g := range guests {
		if i := slices.IndexFunc(standard.Modules(standard.Deps{}), func(s standard.Module) bool { return s.Name == g.Name }); i >= 0 {
			host.Add(
				ctx,
				g.Name,
				standard.Modules(standard.Deps{})[i].New,
			) // whose error is that module's to tell when the host starts
		}
	}
	return host
}

// checkDefault says what is wrong with the context that callers get who name
// none.
func checkDefault(name string, fixed *contextstore.Fixed, book *contextstore.Snapshot) error {
	if name == "" || name != contextstore.Admin && fixed.Has(name) || book.Find(name) != nil {
		return nil
	}
	var names []string
	for _, s := range fixed.Specs {
		names = append(names, s.Name)
	}
	for _, r := range book.Records {
		names = append(names, r.Name)
	}
	return &SettingError{
		&config.SettingProblem{
			Path: "view.context",
			Err:  fmt.Errorf("there is no context %q; expected one of %s", name, strings.Join(names, ", ")),
		},
	}
}
