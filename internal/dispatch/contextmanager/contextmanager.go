// Package contextmanager applies the contexts of the configuration, and those that are created at run time, to a
// running host: the rules, the folders of each context, its limits, and the tools that it defines.
//
// Package contextstore stores the contexts that are created at run time; this package applies each change. Only
// app imports it.
package contextmanager

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options configures a Manager. Fill may be nil; all other fields are required.
type Options struct {
	Store   *contextstore.Store
	Fixed   contextstore.Fixed // the contexts of the configuration
	Fill    contextstore.Fill  // puts secrets into variables; nil if the host stores none
	Roots   *roots.Set         // the folders of the host, for contexts without their own
	Folders roots.Options      // how folders of contexts are opened
	// Patience is how long active calls may take to end after their context was removed.
	Patience time.Duration
	Log      *slog.Logger
}

// Targets are what contexts are applied to.
type Targets struct {
	Views   *views.Registry
	Limits  *limit.Limits
	Modules *modulehost.Host
	// Custom returns a module for what a context defines for itself.
	Custom func() CustomModule
	// Changed notifies the clients that their lists may have changed.
	Changed func()
	// Publish publishes a change of a context that was created at run time. recorded means that the process that
	// made the change has written it to the ledger.
	Publish func(subject string, change Change, recorded bool)
}

// CustomModule is the module of what one context defines for itself.
type CustomModule interface {
	Set(*contextstore.Record) error
	Make(context.Context, module.Deps) (module.Module, error)
}

// Change is the event of a context that was created, changed or removed.
type Change struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	By       string `json:"by,omitempty"`
}

// Manager applies contexts. It is safe for concurrent use.
type Manager struct {
	opts Options
	to   Targets // set by Start

	mu     sync.Mutex // held while a change is applied
	fixed  contextstore.Fixed
	now    *contextstore.Snapshot
	own    map[string]CustomModule        // by context
	dirs   map[string][]contextstore.Root // by context, the roots from which folders was opened
	warned map[string]bool                // by the text of the rule in force

	folders  atomic.Pointer[map[string]tool.Roots] // by context; a context that is not in it has none
	removing sync.WaitGroup                        // modules whose context was removed
}

// New returns a manager, which applies nothing before Start.
func New(o Options) *Manager {
	return &Manager{
		opts:  o,
		fixed: o.Fixed,
		now:   &contextstore.Snapshot{},
		own:   map[string]CustomModule{},
		dirs:  map[string][]contextstore.Root{},
	}
}

// Start applies the contexts, and each change from now on. The error is one of the configuration.
func (m *Manager) Start(to Targets) error {
	rules, err := m.fixed.With(nil)
	if err != nil {
		return err
	}
	m.to = to
	to.Views.Set(rules)
	m.applyContexts(true)
	m.opts.Store.OnChange(func() { m.applyContexts(false) })
	return nil
}

// IsFixed reports whether the configuration has a context of that name.
func (m *Manager) IsFixed(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fixed.Has(name)
}

// Close closes the folders of contexts. It is called when all modules have ended.
func (m *Manager) Close(context.Context) error {
	m.removing.Wait()
	var errs []error
	if all := m.folders.Load(); all != nil {
		for _, r := range *all {
			if set, ok := r.(*roots.Set); ok && set != m.opts.Roots {
				errs = append(errs, set.Close())
			}
		}
	}
	return errors.Join(errs...)
}

// Refresh applies what other processes have changed in the store. Also what another goroutine has just read is applied
// when it returns. It must not be called before Start.
func (m *Manager) Refresh() {
	if err := m.opts.Store.Refresh(); err != nil {
		m.opts.Log.Warn("contexts of another process cannot be read at the moment", "err", err)
	}
	m.applyContexts(false)
}

// SetFixed replaces the contexts of the configuration. After an error, which is one of fixed, nothing has changed.
func (m *Manager) SetFixed(fixed contextstore.Fixed) error {
	if _, err := fixed.With(nil); err != nil {
		return err
	}
	m.mu.Lock()
	m.fixed = fixed
	m.mu.Unlock()
	m.applyContexts(true)
	return nil
}

// applyContexts applies the current contexts, and warns of rules that compare text.
func (m *Manager) applyContexts(always bool) {
	if m.replace(always) {
		m.warnOfText()
	}
}

// replace applies the contexts and reports whether anything changed. The folders and tools of a context are added
// before callers can use it, and removed after they no longer can.
func (m *Manager) replace(always bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, was := m.opts.Store.Current(), m.now
	if next.Turn == was.Turn && !always {
		return false
	}
	m.now = next
	rules, err := m.fixed.With(next.Records)
	if err != nil {
		m.opts.Log.Error("some contexts are left out", "err", err)
	}
	if rules.Policy == nil {
		return false // the configuration was checked before, so this cannot happen; change nothing
	}
	m.openFolders(next, &rules)
	m.setLimits(next, &rules)
	m.define(next, &rules)
	m.to.Views.Set(rules)
	m.undefine(&rules)
	m.to.Changed()
	m.publish(was, next)
	return true
}

// openFolders opens the folders of contexts that have their own. If they cannot be opened, the context has none.
func (m *Manager) openFolders(next *contextstore.Snapshot, rules *views.Rules) {
	all := map[string]tool.Roots{}
	dirs := map[string][]contextstore.Root{}
	for _, s := range rules.Specs {
		all[s.Name] = m.opts.Roots
		r := m.findRecord(next, s.Name)
		if r == nil || len(r.Roots) == 0 {
			continue
		}
		if was := m.dirs[s.Name]; was != nil && slices.Equal(was, r.Roots) {
			all[s.Name], dirs[s.Name] = (*m.folders.Load())[s.Name], was
			continue
		}
		set, err := openRoots(r.Roots, m.opts.Folders)
		if err != nil {
			m.opts.Log.Error(
				"the folders of a context cannot be opened; it has none until it is changed",
				"context",
				r.Name,
				"err",
				err,
			)
			all[s.Name] = noRoots{}
			continue
		}
		all[s.Name], dirs[s.Name] = set, r.Roots
	}
	m.folders.Store(&all) // calls may still use the previous sets, which close with the last of them
	m.dirs = dirs
}

// setLimits applies the limits of contexts.
func (m *Manager) setLimits(next *contextstore.Snapshot, rules *views.Rules) {
	all := map[string]limit.Context{}
	for _, s := range rules.Specs {
		if r := m.findRecord(next, s.Name); r != nil && r.Limits != (contextstore.Limits{}) {
			all[s.Name] = limit.Context(r.Limits)
		}
	}
	m.to.Limits.SetContexts(all)
}

// findRecord returns what a context has besides its view, in the configuration or in the store, or nil if it has
// nothing.
func (m *Manager) findRecord(in *contextstore.Snapshot, name string) *contextstore.Record {
	if m.fixed.Has(name) {
		return m.fixed.Find(name)
	}
	return in.Find(name)
}

func openRoots(list []contextstore.Root, o roots.Options) (*roots.Set, error) {
	var dirs []roots.Dir
	for _, d := range list {
		dirs = append(dirs, roots.Dir{Name: d.Name, Path: d.Path})
	}
	return roots.Open(dirs, o)
}

// noRoots is the roots of a context without folders.
type noRoots struct{}

func (noRoots) List() []tool.Root { return nil }
func (noRoots) Resolve(string) (*os.Root, string, error) {
	return nil, "", tool.Refuse(tool.CodeOutsideRoot, "this context has no folders")
}

// RootsOf returns the folders of a caller's context, or nil for a caller without one. A removed context has no
// folders, even for calls that began before.
func (m *Manager) RootsOf(who tool.Caller) tool.Roots {
	if all := m.folders.Load(); all != nil && who.Context != "" {
		if r := (*all)[who.Context]; r != nil {
			return r
		}
		return noRoots{}
	}
	return nil
}

// Environment returns the variables of a caller's context, with their secrets.
func (m *Manager) Environment(who tool.Caller) (contextstore.Environment, error) {
	m.mu.Lock()
	r := m.findRecord(m.now, who.Context)
	m.mu.Unlock()
	if r == nil {
		return contextstore.Environment{}, nil
	}
	return r.Environment(m.opts.Fill)
}

// Variables returns the variables of a context in the form of the definition, with references to secrets.
func (m *Manager) Variables(context string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.findRecord(m.now, context)
	if r == nil {
		return nil
	}
	return r.Env
}

// define adds the modules of what contexts define for themselves.
func (m *Manager) define(next *contextstore.Snapshot, rules *views.Rules) {
	for i := range next.Records {
		r := &next.Records[i]
		if rules.Spec(r.Name) == nil || m.fixed.Has(r.Name) || !r.Defines() && m.own[r.Name] == nil {
			continue
		}
		own := m.own[r.Name]
		fresh := own == nil
		if fresh {
			own = m.to.Custom()
		}
		err := own.Set(r)
		if err == nil && fresh {
			err = m.to.Modules.AddFor(context.Background(), r.Name, r.Module(), own.Make)
		}
		if err != nil {
			m.opts.Log.Error("what a context defines is left out", "context", r.Name, "err", err)
			continue
		}
		m.own[r.Name] = own
	}
}

// undefine removes the modules whose contexts were removed. Their active calls have as much time to end as when
// the host stops.
func (m *Manager) undefine(rules *views.Rules) {
	for name := range m.own {
		if rules.Spec(name) != nil {
			continue
		}
		delete(m.own, name)
		end := m.to.Modules.Remove((&contextstore.Record{Name: name}).Module())
		m.removing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), m.opts.Patience)
			defer cancel()
			if err := end(ctx); err != nil {
				m.opts.Log.Warn("calls in a removed context still run", "context", name, "err", err)
			}
		})
	}
}

// publish publishes the changes of the contexts in the store.
func (m *Manager) publish(was, next *contextstore.Snapshot) {
	for _, r := range next.Records {
		switch old := was.Find(r.Name); {
		case old == nil:
			m.publishChange("context.created", r, false)
		case old.Revision != r.Revision:
			m.publishChange("context.changed", r, false)
		}
	}
	for _, r := range was.Records {
		if next.Find(r.Name) == nil {
			m.publishChange("context.removed", r, true)
		}
	}
}

// publishChange publishes one change. The process that makes a change writes it to the ledger, so a change of
// another process has been recorded already.
func (m *Manager) publishChange(subject string, r contextstore.Record, removed bool) {
	ours := m.opts.Store.Made(r.Name, r.Revision, removed)
	m.to.Publish(subject, Change{r.Name, r.Revision, r.By}, !ours)
}

// Definitions returns the contexts of the configuration.
func (m *Manager) Definitions() (all []contextstore.Record) {
	m.mu.Lock()
	fixed := m.fixed
	m.mu.Unlock()
	for _, s := range m.to.Views.Rules().Specs {
		if r := fixed.Definition(s.Name); r != nil {
			all = append(all, *r)
		} else if s.Name == contextstore.Admin {
			all = append(all, contextstore.Record{Name: s.Name, Fixed: true, Definition: contextstore.Definition{
				Description: s.Description, Modules: s.Modules, Roles: []string{contextstore.AdminRole},
			}})
		}
	}
	return all
}

// warnOfText logs a warning of each rule in force that compares text, once for as long as it is in force.
func (m *Manager) warnOfText() {
	m.mu.Lock()
	rules := slices.Clone(m.fixed.Policy.Rules)
	for i := range m.now.Records {
		own, _ := m.now.Records[i].Permit() // a context with mistakes is left out, which was logged
		rules = append(rules, own...)
	}
	m.mu.Unlock()
	if !permit.ReadArguments(rules) {
		return
	}
	ctx := context.Background()
	all := map[string]bool{}
	for _, s := range permit.Warnings(rules, modulehost.Tools(m.to.Modules.Offers(ctx, module.Audience{}))) {
		all[s] = true
	}
	m.mu.Lock()
	was := m.warned
	m.warned = all
	m.mu.Unlock()
	for s := range all {
		if !was[s] {
			m.opts.Log.WarnContext(ctx, "a rule can be evaded", slog.String("rule", s))
		}
	}
}
