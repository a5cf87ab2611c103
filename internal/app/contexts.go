package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/contextadmin"
	"gatehouse/internal/modules/custom"
	"gatehouse/internal/modules/standard"
	"gatehouse/module"
	"gatehouse/tool"
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

// inForce puts the contexts of the configuration and of the book in force: the
// rules, each context's folders and what it defines for itself.
type inForce struct {
	app  *App
	book *contextstore.Book
	fill contextstore.Fill // nil: this host keeps no secrets

	mu    sync.Mutex // held while a change is put in force
	fixed contextstore.Fixed
	now   *contextstore.Snapshot
	own   map[string]*custom.Module      // by context
	dirs  map[string][]contextstore.Root // by context, what folders was made from

	folders atomic.Pointer[map[string]tool.Roots] // by context; one that is not there has none
	leaving sync.WaitGroup                        // modules whose context is gone
	warned  map[string]bool                       // of rules in force; guarded by mu
}

// openBook opens the book of contexts and works out what there is besides. A
// book that cannot be read leaves its contexts out: who is bound to one finds
// it gone.
func (a *App) openBook(context.Context) (err error) {
	f := &inForce{app: a, own: map[string]*custom.Module{}, dirs: map[string][]contextstore.Root{}, now: &contextstore.Snapshot{}}
	if f.fixed, err = fixedContexts(a.cfg, a.guests); err != nil {
		return err
	}
	f.fixed.Policy.Host = a.resolver()
	if a.cfg.Folders.Config != "" {
		f.fill = secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Fill
	}
	o := contextstore.Options{Log: a.log, Fixed: f.isFixed, Modules: a.moduleNames}
	path := ContextsFile(a.cfg.Folders)
	if f.book, err = contextstore.Open(path, o); err != nil {
		a.log.Error("contexts made at run time are left out: the file cannot be read", "file", path, "err", err)
		if f.book, err = contextstore.Open("", o); err != nil {
			return err
		}
	}
	a.contexts = f
	a.closing("contexts", f.close)
	return checkDefault(a.cfg.View.Context, &f.fixed, f.book.Current())
}

func (f *inForce) isFixed(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fixed.Has(name)
}

// close is called when no module runs any more.
func (f *inForce) close(context.Context) error {
	f.leaving.Wait()
	var errs []error
	if all := f.folders.Load(); all != nil {
		for _, r := range *all {
			if set, ok := r.(*roots.Set); ok && set != f.app.roots {
				errs = append(errs, set.Close())
			}
		}
	}
	return errors.Join(append(errs, f.book.Close())...)
}

// begin puts in force what the book holds at the start, and follows it from
// then on.
func (f *inForce) begin() error {
	rules, err := f.fixed.With(nil)
	if err != nil {
		return &SettingError{err}
	}
	f.app.views.Set(rules)
	f.apply(true)
	f.book.OnChange(func() { f.apply(false) })
	f.app.room(Part{"context book", f.book.Run})
	return nil
}

// look takes in what other processes have just changed in the book.
func (f *inForce) look() {
	if err := f.book.Refresh(); err != nil {
		f.app.log.Warn("contexts made by another process cannot be read at the moment", "err", err)
	}
}

// SetFixed replaces the contexts of the configuration; those of the book stay
// on top. The error is one of the new part, and then everything stays as it
// was.
func (f *inForce) SetFixed(fixed contextstore.Fixed) error {
	if _, err := fixed.With(nil); err != nil {
		return err
	}
	f.mu.Lock()
	f.fixed = fixed
	f.mu.Unlock()
	f.apply(true)
	return nil
}

// apply puts the book, as it is now, in force, and warns of rules that compare
// text.
func (f *inForce) apply(always bool) {
	if f.replace(always) {
		f.warnOfText()
	}
}

// replace puts the book in force. What a context may touch and what it defines
// comes before it can be entered, and goes after. It reports whether anything
// changed.
func (f *inForce) replace(always bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, was := f.book.Current(), f.now
	if next.Turn == was.Turn && !always {
		return false
	}
	f.now = next
	rules, err := f.fixed.With(next.Records)
	if err != nil {
		f.app.log.Error("some contexts are left out", "err", err)
	}
	if rules.Policy == nil {
		return false // of the fixed part, which was checked: nothing changes
	}
	f.openFolders(next, &rules)
	f.limit(next, &rules)
	f.define(next, &rules)
	f.app.views.Set(rules)
	f.undefine(&rules)
	f.app.engine.Changed()
	f.publish(was, next)
	return true
}

// openFolders opens the folders of contexts that have their own. Where that
// fails the context has none at all.
func (f *inForce) openFolders(next *contextstore.Snapshot, rules *views.Rules) {
	all := map[string]tool.Roots{}
	dirs := map[string][]contextstore.Root{}
	for _, s := range rules.Specs {
		all[s.Name] = f.app.roots
		r := f.find(next, s.Name)
		if r == nil || len(r.Roots) == 0 {
			continue
		}
		if was := f.dirs[s.Name]; was != nil && slices.Equal(was, r.Roots) {
			all[s.Name], dirs[s.Name] = (*f.folders.Load())[s.Name], was
			continue
		}
		set, err := open(r.Roots, f.app.rootOptions())
		if err != nil {
			f.app.log.Error("the folders of a context cannot be opened; it has none until it is changed", "context", r.Name, "err", err)
			all[s.Name] = nothing{}
			continue
		}
		all[s.Name], dirs[s.Name] = set, r.Roots
	}
	f.folders.Store(&all) // calls may be using those that are gone: they close with the last
	f.dirs = dirs
}

// limit puts the limits of contexts in force.
func (f *inForce) limit(next *contextstore.Snapshot, rules *views.Rules) {
	all := map[string]limit.Context{}
	for _, s := range rules.Specs {
		if r := f.find(next, s.Name); r != nil && r.Limits != (contextstore.Limits{}) {
			all[s.Name] = limit.Context(r.Limits)
		}
	}
	f.app.limits.SetContexts(all)
}

// find is what a context has besides its view, of the configuration or of the
// book; nil when that is nothing.
func (f *inForce) find(in *contextstore.Snapshot, name string) *contextstore.Record {
	if f.fixed.Has(name) {
		return f.fixed.Find(name)
	}
	return in.Find(name)
}

func open(list []contextstore.Root, o roots.Options) (*roots.Set, error) {
	var dirs []roots.Dir
	for _, d := range list {
		dirs = append(dirs, roots.Dir{Name: d.Name, Path: d.Path})
	}
	return roots.Open(dirs, o)
}

// nothing is the folders of a context that has none.
type nothing struct{}

func (nothing) List() []tool.Root { return nil }
func (nothing) Resolve(string) (*os.Root, string, error) {
	return nil, "", tool.Refuse("outside_root", "this context has no folders")
}

// rootsOf are the folders of a caller's context. One that is gone has none,
// also for work that began while it was there.
func (f *inForce) rootsOf(who tool.Caller) tool.Roots {
	if all := f.folders.Load(); all != nil && who.Context != "" {
		if r := (*all)[who.Context]; r != nil {
			return r
		}
		return nothing{}
	}
	return nil
}

// environment is that of a caller's context.
func (f *inForce) environment(who tool.Caller) (contextstore.Environment, error) {
	f.mu.Lock()
	r := f.find(f.now, who.Context)
	f.mu.Unlock()
	if r == nil {
		return contextstore.Environment{}, nil
	}
	return r.Environment(f.fill)
}

// variables are those of a context as they are written, with references to
// secrets.
func (f *inForce) variables(context string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.find(f.now, context)
	if r == nil {
		return nil
	}
	return r.Env
}

// define offers what contexts define for themselves.
func (f *inForce) define(next *contextstore.Snapshot, rules *views.Rules) {
	for i := range next.Records {
		r := &next.Records[i]
		if rules.Spec(r.Name) == nil || f.fixed.Has(r.Name) || !r.Defines() && f.own[r.Name] == nil {
			continue
		}
		m := f.own[r.Name]
		fresh := m == nil
		if fresh {
			m = custom.New(custom.Options{Env: f.environment, Roots: f.rootsOf, Log: f.app.log})
		}
		err := m.Set(r)
		if err == nil && fresh {
			err = f.app.host.AddFor(context.Background(), r.Name, r.Module(), m.Make)
		}
		if err != nil {
			f.app.log.Error("what a context defines is left out", "context", r.Name, "err", err)
			continue
		}
		f.own[r.Name] = m
	}
}

// undefine lets go of the modules whose contexts are gone. Calls that run in
// them have as long as the host gives them when it stops.
func (f *inForce) undefine(rules *views.Rules) {
	for name := range f.own {
		if rules.Spec(name) != nil {
			continue
		}
		delete(f.own, name)
		end := f.app.host.Remove((&contextstore.Record{Name: name}).Module())
		f.leaving.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), f.app.cfg.Limits.StopPatience)
			defer cancel()
			if err := end(ctx); err != nil {
				f.app.log.Warn("calls in a context that is gone still run", "context", name, "err", err)
			}
		})
	}
}

// publish tells what has become of the book's contexts.
func (f *inForce) publish(was, next *contextstore.Snapshot) {
	for _, r := range next.Records {
		switch old := was.Find(r.Name); {
		case old == nil:
			f.tell("context.created", r, f.book.Made(r.Name, r.Revision, false))
		case old.Revision != r.Revision:
			f.tell("context.changed", r, f.book.Made(r.Name, r.Revision, false))
		}
	}
	for _, r := range was.Records {
		if next.Find(r.Name) == nil {
			f.tell("context.removed", r, f.book.Made(r.Name, r.Revision, true))
		}
	}
}

// tell tells of a change. One that another process has made is in the ledger
// already: whoever makes a change writes it down.
func (f *inForce) tell(subject string, r contextstore.Record, ours bool) {
	fact := f.app.event(subject, struct {
		Name     string `json:"name"`
		Revision int64  `json:"revision"`
		By       string `json:"by,omitempty"`
	}{r.Name, r.Revision, r.By})
	fact.Kept = !ours
	f.app.bus.Publish(fact)
}

// admin makes the module that administers the contexts.
func (f *inForce) admin() module.New {
	return contextadmin.New(contextadmin.Options{Book: f.book, Judge: f.app.judge, Fixed: f.definitions})
}

// definitions are those of the fixed contexts.
func (f *inForce) definitions() (all []contextstore.Record) {
	f.mu.Lock()
	fixed := f.fixed
	f.mu.Unlock()
	for _, s := range f.app.views.Rules().Specs {
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
