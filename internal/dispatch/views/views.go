// Package views builds the views of callers: the tools, resources and prompts that each may use, and under which
// names, with one gate each. A view is immutable and encoded once.
package views

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/module"
	"gatehouse/tool"
)

// ErrNotFound is the error for a context that does not exist and for one the caller may not know of.
//
//lint:ignore ST1005 clients are told these words
var ErrNotFound = errors.New("Context not found")

// ErrForbidden is the error for a context that the caller may know of but may not use.
//
//lint:ignore ST1005 clients are told these words
var ErrForbidden = errors.New("Context not allowed")

// Style is how a view writes the names of tools.
type Style string

const (
	Underscore Style = "underscore" // file_read, as modules name them
	Dot        Style = "dot"        // file.read
	Colon      Style = "colon"      // file:read; not every client accepts it
)

// Spec defines one context: a named choice from what the modules offer, and how it is presented. Patterns are
// those of path.Match and are matched against the modules' own names; "!" in front excludes; nil means all.
type Spec struct {
	Name        string
	Description string
	Modules     []string          // names
	Tools       []string          // patterns of names; with Aliases, of those too
	Prompts     []string          // patterns of names
	Resources   []string          // patterns of URIs and templates, in which * also matches slashes
	Rename      map[string]string // a tool's or prompt's own name -> its name here
	Describe    map[string]string // a tool's or prompt's own name -> its description here
	Shapes      []Shape           // what else changes in tools, each by its own name
	Style       Style             // "" means Underscore
	Aliases     bool              // tools are listed by the first alias they declare, and can be called by all of them
	CallAliases bool              // tools can be called by their aliases, and are listed by their own names
	Results     string            // TextResults or Structured; "" means TextResults
	List        string            // ListAll, ListSearch or ListAuto; "" means ListAll
	Pinned      []string          // patterns of tools that a short list has
	ProgramsAsk bool              // programs may call tools that ask the caller or need an approval
	Team        string            // owns what is made in it; "" means that each caller owns what it makes
	Labels      []string          // that a node of the cluster must have to run its sandboxes, processes and packages
	Unpaged     bool              // tools that page their output return all of it, up to tool.MostUnpaged
	Unsorted    bool              // lists keep the order of the modules' offers; otherwise they are sorted by name
}

// These are what a view sends of a tool that produces text.
const (
	TextResults = "text"       // the product and the facts, as text alone
	Structured  = "structured" // the whole output as structured content, with its schema
)

// Rules holds everything about contexts that can change while the host runs. It is immutable; a change creates new
// rules.
type Rules struct {
	Specs   []Spec
	Default string // of callers who name none; "" means the first
	Policy  *permit.Policy
}

// Options configures a Registry. Offers, Rules.Policy and Log are required.
type Options struct {
	Offers func(context.Context, module.Audience) []modulehost.Offered
	Rules  Rules
	Always []string // modules that are part of every context
	Page   int      // entries of a list page; 0 means 1,000
	Tail   Tail     // nil means nothing
	// Look is called when a caller asks for a context that the rules do not have, because another process may have
	// just defined it. nil does nothing.
	Look func()
	Log  *slog.Logger
	// Model compares queries with tools besides their words; nil means none.
	Model *toolsearch.Model
}

// Tail returns the members that end a list result in some revision, each with a comma in front: envelope and
// caching hints. shared means that every caller of the host gets the same list.
type Tail func(r mcpversion.Revision, shared bool) string

// Registry builds and caches views. It is safe for concurrent use.
type Registry struct {
	opts  Options
	rules atomic.Pointer[Rules]
	epoch atomic.Uint64 // counts changes of offers and rules

	schemas compiler
	used    usage

	mu    sync.RWMutex
	views map[key]*View
}

// key is what a view depends on besides the offers.
type key struct {
	rules     *Rules
	context   string
	cut       permit.Cut
	principal string // "" unless some offer is personal
	all       bool   // with entries that the caller is refused; never cached
}

// New returns a Registry.
func New(o Options) *Registry {
	if o.Page == 0 {
		o.Page = 1000
	}
	if o.Tail == nil {
		o.Tail = func(mcpversion.Revision, bool) string { return "" }
	}
	c := &Registry{opts: o, views: make(map[key]*View)}
	c.Set(o.Rules)
	return c
}

// Set replaces the rules. Views are rebuilt when they are next requested; running calls keep theirs.
func (c *Registry) Set(r Rules) {
	if len(r.Specs) == 0 {
		r.Specs = []Spec{{Name: "default"}}
	}
	if r.Default == "" {
		r.Default = r.Specs[0].Name
	}
	c.rules.Store(&r)
	c.mu.Lock()
	clear(c.views)
	c.mu.Unlock()
	c.epoch.Add(1)
}

// Rules returns the rules in force. They must not be changed.
func (r *Registry) Rules() *Rules { return r.rules.Load() }

// Default returns the name of the context of callers who name none.
func (r *Registry) Default() string { return r.rules.Load().Default }

// teamPrefix marks owners that are teams. No name or ID of a user has a colon.
const teamPrefix = "team:"

// Owner returns who owns what a caller makes in its context: the context's team, or the caller.
func (r *Registry) Owner(c *tool.Caller) string {
	if spec := r.rules.Load().Spec(c.Context); spec != nil && spec.Team != "" {
		return teamPrefix + spec.Team + "/" + c.Context
	}
	return c.Own()
}

// Cut returns the caller's cut by the policy in force.
func (r *Registry) Cut(who tool.Caller) permit.Cut { return r.rules.Load().Policy.Cut(who) }

// Spec returns the definition of a context, or nil.
func (r *Rules) Spec(name string) *Spec {
	for i := range r.Specs {
		if r.Specs[i].Name == name {
			return &r.Specs[i]
		}
	}
	return nil
}

// Open returns the contexts that a caller may use, in their order.
func (c *Registry) Open(who tool.Caller) (specs []Spec) {
	r := c.rules.Load()
	cut := r.Policy.Cut(who)
	for _, s := range r.Specs {
		if r.Policy.Enter(cut, s.Name) == permit.Welcome {
			specs = append(specs, s)
		}
	}
	return specs
}

// Stale marks that offers have changed, so that views are checked when they are next requested.
func (r *Registry) Stale() { r.epoch.Add(1) }

// View returns the view of a caller. who.Context names the context; the cut is the caller's, see Cut. The error is
// ErrNotFound or ErrForbidden.
func (r *Registry) View(ctx context.Context, who *tool.Caller, cut permit.Cut) (*View, error) {
	epoch := r.epoch.Load()
	k := key{rules: r.rules.Load(), context: who.Context, cut: cut}
	v := r.cached(k)
	if v != nil && v.personal {
		k.principal = who.Principal
		v = r.cached(k)
	}
	if v != nil && v.epoch.Load() == epoch {
		return v, nil
	}
	return r.build(ctx, who, k, v, epoch)
}

func (r *Registry) cached(k key) *View {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.views[k]
}

// build builds the view again, or keeps the old one if the offers are the same.
func (r *Registry) build(ctx context.Context, who *tool.Caller, k key, old *View, epoch uint64) (*View, error) {
	spec := k.rules.Spec(k.context)
	if spec == nil && r.opts.Look != nil {
		if r.opts.Look(); r.rules.Load() != k.rules {
			k.rules, k.cut, epoch = r.rules.Load(), r.Cut(*who), r.epoch.Load()
			spec, old = k.rules.Spec(k.context), nil
		}
	}
	if spec == nil {
		return nil, ErrNotFound
	}
	switch k.rules.Policy.Enter(k.cut, k.context) {
	case permit.Unknown:
		return nil, ErrNotFound
	case permit.Forbidden:
		return nil, ErrForbidden
	}
	offers := r.opts.Offers(ctx, module.Audience{Principal: who.Principal, Context: who.Context})
	if old != nil && old.sameOffers(offers) {
		old.epoch.Store(epoch)
		return old, nil
	}
	v := r.compile(k, spec, offers)
	v.epoch.Store(epoch)
	k.principal = ""
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.rules != r.rules.Load() {
		return v, nil // the rules changed meanwhile: valid for this call only
	}
	if len(r.views) >= 10_000 {
		clear(r.views)
	}
	if v.personal {
		r.views[k] = v // records for the next caller that the principal matters
		k.principal = who.Principal
	}
	r.views[k] = v
	return v, nil
}

// Whole returns what a context contains for a caller, including what the policy refuses: each entry with its gate.
// It is for evaluating the policy, never for the caller. The error is ErrNotFound for a context that does not
// exist.
func (r *Registry) Whole(ctx context.Context, who *tool.Caller) (*View, permit.Entry, error) {
	k := key{rules: r.rules.Load(), context: who.Context, cut: r.Cut(*who), all: true}
	spec := k.rules.Spec(k.context)
	if spec == nil {
		return nil, permit.Unknown, ErrNotFound
	}
	v := r.compile(k, spec, r.opts.Offers(ctx, module.Audience{Principal: who.Principal, Context: who.Context}))
	return v, k.rules.Policy.Enter(k.cut, k.context), nil
}

// Of returns what a caller's context chooses from some offers alone, as View does from all of them. It is compiled
// again for each call. The error is ErrNotFound or ErrForbidden.
func (r *Registry) Of(who tool.Caller, offers []modulehost.Offered) (*View, error) {
	k := key{rules: r.rules.Load(), context: who.Context, cut: r.Cut(who)}
	spec := k.rules.Spec(k.context)
	if spec == nil {
		return nil, ErrNotFound
	}
	switch k.rules.Policy.Enter(k.cut, k.context) {
	case permit.Unknown:
		return nil, ErrNotFound
	case permit.Forbidden:
		return nil, ErrForbidden
	}
	return r.compile(k, spec, offers), nil
}

// Defined returns the definition of a tool by the name it has in a caller's view.
func (r *Registry) Defined(ctx context.Context, who tool.Caller, name string) (*tool.Def, bool) {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return nil, false
	}
	e := v.Tool(name)
	if e == nil {
		return nil, false
	}
	return &e.Tool.Def, true
}

// ToolNames returns the names of the tools of a caller's view.
func (r *Registry) ToolNames(ctx context.Context, who tool.Caller) (names []string) {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return nil
	}
	for _, e := range v.Entries(Tools) {
		names = append(names, e.Listed)
	}
	return names
}

// Sees reports whether the view of a caller has a tool of a module; name "" means
// any tool of it.
func (r *Registry) Sees(ctx context.Context, who tool.Caller, module, name string) (bool, error) {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(v.Entries(Tools), func(e *Entry) bool {
		return e.Module == module && (name == "" || e.Name == name)
	}), nil
}
