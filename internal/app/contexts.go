package app

import (
	"context"
	"path/filepath"
	"slices"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextmanager"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/modules/custom"
	"gatehouse/internal/modules/standard"
)

// The host's own modules in the administration context, and nowhere else.
const (
	contextModule = "context"
	sshModule     = "ssh"
)

// ContextsFile is where hosts of one person keep the contexts that are made
// while they run; "" keeps them in memory.
func ContextsFile(f config.Folders) string {
	if f.Data == "" {
		return ""
	}
	return filepath.Join(f.Data, "contexts.db")
}

// ReservedContext reports whether a name is that of a context which some host
// has by itself, so that the book must not take it.
func ReservedContext(name string) bool {
	return name == DefaultContext || name == contextstore.Admin || slices.Contains(viewNames(), name) ||
		slices.ContainsFunc(standard.Modules(standard.Deps{}), func(g standard.Module) bool { return g.Name == name })
}

// openContexts opens the store of contexts that are made at run time. If it cannot
// be read, the host starts without them, and callers that are bound to one of them
// find no context.
func (a *App) openContexts(context.Context) error {
	fixed, err := fixedContexts(a.cfg, a.guests)
	if err != nil {
		return err
	}
	fixed.Policy.Host = a.resolver()
	o := contextstore.Options{
		Log: a.log,
		Fixed: func(name string) bool {
			if a.contexts == nil { // while the store is opened
				return fixed.Has(name)
			}
			return a.contexts.IsFixed(name)
		},
		Modules: a.moduleNames,
	}
	path := ContextsFile(a.cfg.Folders)
	store, err := contextstore.Open(path, o)
	if err != nil {
		a.log.Error("contexts made at run time are left out: the file cannot be read", "file", path, "err", err)
		if store, err = contextstore.Open("", o); err != nil {
			return err
		}
	}
	m := contextmanager.Options{
		Store:    store,
		Fixed:    fixed,
		Roots:    a.roots,
		Folders:  a.rootOptions(),
		Patience: a.cfg.Limits.StopPatience,
		Log:      a.log,
	}
	if a.cfg.Folders.Config != "" {
		m.Fill = secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Fill
	}
	a.contextStore, a.contexts = store, contextmanager.New(m)
	a.closing("context store", func(context.Context) error { return store.Close() })
	a.closing("contexts", a.contexts.Close)
	return checkDefault(a.cfg.View.Context, &fixed, store.Current())
}

// startContexts applies the contexts to the host.
func (a *App) startContexts() error {
	err := a.contexts.Start(contextmanager.Targets{
		Views:   a.views,
		Limits:  a.limits,
		Modules: a.host,
		Custom: func() contextmanager.CustomModule {
			return custom.New(custom.Options{Env: a.contexts.Environment, Roots: a.contexts.RootsOf, Log: a.log})
		},
		Changed: a.engine.Changed,
		Publish: func(subject string, change contextmanager.Change, recorded bool) {
			event := a.event(subject, change)
			event.Kept = recorded
			a.bus.Publish(event)
		},
	})
	if err != nil {
		return &SettingError{err}
	}
	a.addPart("context book", a.contextStore.Run)
	return nil
}
