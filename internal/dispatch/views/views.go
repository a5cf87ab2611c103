// Package views makes the views callers get: which tools, resources and
// prompts there are under which names, with one gate each, immutable and
// encoded once.
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
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/module"
	"gatehouse/tool"
)

// ErrNotFound is the answer for a context that is not there and for one the
// caller may not know of.
//
//lint:ignore ST1005 clients are told these words
var ErrNotFound = errors.New("Context not found")

// ErrForbidden is the answer for a context the caller knows of and may not
// enter.
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

// Spec defines one context: a named choice from what the modules offer, and
// how it is presented. Patterns are those of path.Match on the modules' own
// names; "!" in front takes away; nil means all.
type Spec struct {
	Name        string
	Description string
	Modules     []string          // names
	Tools       []string          // patterns of names; with Aliases, of those too
	Prompts     []string          // patterns of names
	Resources   []string          // patterns of URIs and templates, in which * stops at no slash
	Rename      map[string]string // a tool's or prompt's own name -> its name here
	Describe    map[string]string // a tool's or prompt's own name -> its description here
	Style       Style             // "" means Underscore
	Aliases     bool              // tools are listed by the first alias they declare, and answer to all of them
	CallAliases bool              // tools answer to their aliases, and are listed by their own names
	Results     string            // TextResults or Structured; "" means TextResults
	Unpaged     bool              // tools that page themselves give all there is, up to tool.MostUnpaged
}

// What a view sends of a tool whose product is text.
const (
	TextResults = "text"       // the product and the facts, as text alone
	Structured  = "structured" // the whole output as structured content, with its schema
)

// Rules are everything about contexts that can change while the host runs.
// They are immutable; a change makes new ones.
type Rules struct {
	Specs   []Spec
	Default string // of callers who name none; "" means the first
	Policy  *permit.Policy
}

// Options of Contexts. Offers, Rules.Policy and Log are needed.
type Options struct {
	Offers func(context.Context, module.Audience) []modulehost.Offered
	Rules  Rules
	Always []string // modules that are part of every context
	Page   int      // entries of a list page; 0 means 1,000
	Tail   Tail     // nil means nothing
	// Look is called when a context is asked for that the rules do not have:
	// it may have been defined elsewhere a moment ago. nil does nothing.
	Look func()
	Log  *slog.Logger
}

// Tail gives the members that a list result ends with in some revision, each
// with a comma in front: envelope and caching hints. shared says that every
// caller of the host gets the same list.
type Tail func(r mcpversion.Revision, shared bool) string

// Registry builds views and keeps them. Safe for concurrent use.
type Registry struct {
	opts  Options
	rules atomic.Pointer[Rules]
	epoch atomic.Uint64 // counts changes of offers and rules

	schemas compiler

	mu    sync.RWMutex
	views map[key]*View
}

// key is what a view depends on besides the offers.
type key struct {
	rules     *Rules
	context   string
	cut       permit.Cut
	principal string // "" unless some offer is personal
	all       bool   // with what the caller is refused; never kept
}

// New makes Contexts.
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

// Set replaces the rules. Views are built anew as they are next asked for;
// calls that run keep the one they have.
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

// Rules are the rules in force. They are not to be changed.
func (r *Registry) Rules() *Rules { return r.rules.Load() }

// Default is the name of the context a caller gets who names none.
func (r *Registry) Default() string { return r.rules.Load().Default }

// Cut is the caller's cut by the policy in force.
func (r *Registry) Cut(who tool.Caller) permit.Cut { return r.rules.Load().Policy.Cut(who) }

// Spec finds the definition of a context.
func (r *Rules) Spec(name string) *Spec {
	i := slices.IndexFunc(r.Specs, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Specs[i]
}

// Open lists the contexts a caller may enter, in their order.
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

// Stale says that offers have changed; views are looked at again when they
// are next asked for.
func (r *Registry) Stale() { r.epoch.Add(1) }

// View returns what a caller gets. who.Context names the context; the cut is
// the caller's, see Cut. The error is ErrNotFound or ErrForbidden.
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

// build makes the view anew, or keeps the old one when the offers turn out
// to be the same.
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
		return v, nil // the rules changed meanwhile: good for this once
	}
	if len(r.views) >= 10_000 {
		clear(r.views)
	}
	if v.personal {
		r.views[k] = v // tells the next caller that the principal matters
		k.principal = who.Principal
	}
	r.views[k] = v
	return v, nil
}

// Whole is what a context holds for a caller, with what the policy refuses:
// each entry with its gate. It is for those who judge the policy, never for
// the caller. The error is ErrNotFound for a context that is not there.
func (r *Registry) Whole(ctx context.Context, who *tool.Caller) (*View, permit.Entry, error) {
	k := key{rules: r.rules.Load(), context: who.Context, cut: r.Cut(*who), all: true}
	spec := k.rules.Spec(k.context)
	if spec == nil {
		return nil, permit.Unknown, ErrNotFound
	}
	v := r.compile(k, spec, r.opts.Offers(ctx, module.Audience{Principal: who.Principal, Context: who.Context}))
	return v, k.rules.Policy.Enter(k.cut, k.context), nil
}

// Of gives what a caller's context takes from some offers alone, as View does
// from all of them. It is compiled anew for each call. The error is ErrNotFound
// or ErrForbidden.
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

// Defined finds the definition of a tool by the name it has in a caller's
// view.
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

// ToolNames lists the tools of a caller's view.
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
