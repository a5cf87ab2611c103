// Package contexts makes the views callers get: which tools, resources and
// prompts there are under which names, with one gate each, immutable and
// encoded once.
package contexts

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"gatehouse/internal/modules"
	"gatehouse/internal/permit"
	"gatehouse/internal/revision"
	"gatehouse/module"
	"gatehouse/tool"
)

// ErrNotFound is the answer for a context that is not there and for one the
// caller may not know of.
var ErrNotFound = errors.New("Context not found")

// Spec defines one context: a named choice from what the modules offer.
type Spec struct {
	Name    string
	Modules []string // nil means all
	Tools   []string // patterns; "!" in front takes away; nil means all
}

// Options of Contexts. Offers, Policy and Log are needed.
type Options struct {
	Offers func(context.Context, module.Audience) []modules.Offered
	Policy *permit.Policy
	Specs  []Spec   // the first is the default
	Always []string // modules that are part of every context
	Page   int      // entries of a list page; 0 means 1,000
	Tail   Tail     // nil means nothing
	Log    *slog.Logger
}

// Tail gives the members that a list result ends with in some revision, each
// with a comma in front: envelope and caching hints. shared says that the
// view is the same for everyone.
type Tail func(r revision.Revision, shared bool) string

// Contexts builds views and keeps them. Safe for concurrent use.
type Contexts struct {
	opts  Options
	epoch atomic.Uint64 // counts changes of offers

	schemas compiler

	mu    sync.RWMutex
	views map[key]*View
}

// key is what a view depends on besides the offers.
type key struct {
	context   string
	cut       permit.Cut
	principal string // "" unless some offer is personal
}

// New makes Contexts.
func New(o Options) *Contexts {
	if o.Page == 0 {
		o.Page = 1000
	}
	if o.Tail == nil {
		o.Tail = func(revision.Revision, bool) string { return "" }
	}
	if len(o.Specs) == 0 {
		o.Specs = []Spec{{Name: "default"}}
	}
	return &Contexts{opts: o, views: make(map[key]*View)}
}

// Default is the name of the context a caller gets who names none.
func (c *Contexts) Default() string { return c.opts.Specs[0].Name }

// Cut is the caller's cut by the policy.
func (c *Contexts) Cut(who tool.Caller) permit.Cut { return c.opts.Policy.Cut(who) }

// Stale says that offers have changed; views are looked at again when they
// are next asked for.
func (c *Contexts) Stale() { c.epoch.Add(1) }

// View returns what a caller gets. who.Context names the context; the cut is
// the caller's, see Cut.
func (c *Contexts) View(ctx context.Context, who *tool.Caller, cut permit.Cut) (*View, error) {
	epoch := c.epoch.Load()
	k := key{context: who.Context, cut: cut}
	v := c.cached(k)
	if v != nil && v.personal {
		k.principal = who.Principal
		v = c.cached(k)
	}
	if v != nil && v.epoch.Load() == epoch {
		return v, nil
	}
	return c.build(ctx, who, cut, v, epoch)
}

func (c *Contexts) cached(k key) *View {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.views[k]
}

// build makes the view anew, or keeps the old one when the offers turn out
// to be the same.
func (c *Contexts) build(ctx context.Context, who *tool.Caller, cut permit.Cut, old *View, epoch uint64) (*View, error) {
	i := slices.IndexFunc(c.opts.Specs, func(s Spec) bool { return s.Name == who.Context })
	if i < 0 {
		return nil, ErrNotFound
	}
	spec := &c.opts.Specs[i]
	offers := c.opts.Offers(ctx, module.Audience{Principal: who.Principal, Context: who.Context})
	if old != nil && old.sameOffers(offers) {
		old.epoch.Store(epoch)
		return old, nil
	}
	v := c.compile(spec, cut, offers)
	v.epoch.Store(epoch)
	k := key{context: who.Context, cut: cut}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.views) >= 10_000 {
		clear(c.views)
	}
	if v.personal {
		c.views[k] = v // tells the next caller that the principal matters
		k.principal = who.Principal
	}
	c.views[k] = v
	return v, nil
}

// Defined finds the definition of a tool by the name it has in a caller's
// view.
func (c *Contexts) Defined(ctx context.Context, who tool.Caller, name string) (*tool.Def, bool) {
	v, err := c.View(ctx, &who, c.Cut(who))
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
func (c *Contexts) ToolNames(ctx context.Context, who tool.Caller) (names []string) {
	v, err := c.View(ctx, &who, c.Cut(who))
	if err != nil {
		return nil
	}
	for _, e := range v.Entries(Tools) {
		names = append(names, e.Listed)
	}
	return names
}
