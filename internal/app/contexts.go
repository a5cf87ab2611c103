package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextmanager"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/modules/custom"
	"gatehouse/internal/modules/standard"
)

// These are the host's own modules that only the administration context contains.
const (
	contextModule = "context"
	sshModule     = "ssh"
)

// ContextsFile returns the path of the file in which the hosts of one user store the contexts that are created at
// run time; "" means that they are kept in memory.
func ContextsFile(f config.Folders) string {
	if f.Data == "" {
		return ""
	}
	return filepath.Join(f.Data, "contexts.db")
}

// ReservedContext reports whether a name is that of a context that some host has by default, so that the store
// must not accept it.
func ReservedContext(name string) bool {
	return name == DefaultContext || name == contextstore.Admin || slices.Contains(viewNames(), name) ||
		slices.ContainsFunc(standard.Modules(standard.Deps{}), func(g standard.Module) bool { return g.Name == name })
}

// fillSecrets returns what replaces references to secrets in settings, or nil if this host stores none.
func (a *App) fillSecrets() func(map[string]string) (map[string]secret.Text, error) {
	if a.cfg.Folders.Config == "" {
		return nil
	}
	return a.secretStore().Fill
}

// openContexts opens the store of contexts that are created at run time. If it cannot be read, the host starts
// without them, and callers that are bound to one of them find no context.
func (a *App) openContexts(ctx context.Context) error {
	fixed, err := a.fixedContexts(a.cfg)
	if err != nil {
		return err
	}
	fixed.Policy.Host, fixed.Policy.CannotStage, fixed.Policy.Unattended = a.resolver(), a.cannotStage, a.unattended()
	fixed.Policy.Unstageable = unstageable(a.cfg.Stage.Network)
	o := contextstore.Options{
		Log: a.log,
		Fixed: func(name string) bool {
			if a.contexts == nil { // while the store is being opened
				return fixed.Has(name)
			}
			return a.contexts.IsFixed(name)
		},
		Modules: a.moduleNames, Cluster: a.nodes != nil,
	}
	path := ContextsFile(a.cfg.Folders)
	if a.opts.Alone != nil {
		path = "" // no context can contain what this host serves
	}
	store, err := contextstore.Open(path, o)
	if err != nil {
		a.log.Error("contexts created at run time are left out: the file cannot be read", "file", path, "err", err)
		if store, err = contextstore.Open("", o); err != nil {
			return err
		}
	}
	if r := a.replicate(ctx, "contexts"); r != nil {
		if err := store.Replicate(r); err != nil {
			return &SettingError{fmt.Errorf("contexts: %w", errors.Join(err, store.Close()))}
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
	m.Fill = a.fillSecrets()
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
			return custom.New(custom.Options{
				Env:   a.environment,
				Turn:  a.limits.Starts.Wait,
				Roots: a.contexts.RootsOf,
				Log:   a.log,
			})
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
