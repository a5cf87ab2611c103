// Package modulehost runs modules on this node: it keeps what they offer and
// turns each request that comes off the bus into a call of the right handler.
//
// The modules themselves live in the folders below; none of them knows
// another, and none is known here.
package modulehost

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options of a Host. Bus and Log are needed.
type Options struct {
	Bus   bus.Bus
	Roots tool.Roots // nil means none
	// RootsOf gives the folders of a caller's context, where they are not
	// Roots; nil, and a nil answer, mean Roots. It is asked for every call.
	RootsOf func(tool.Caller) tool.Roots
	// Narrow may narrow the folders of a call before its handler runs; nil
	// leaves them. See Narrower.
	Narrow Narrower
	Node   string // names this node in handles
	Log    *slog.Logger
	// Configs are what Deps.Config decodes, by module; see module.DecodeConfig.
	Configs map[string]json.RawMessage

	OneCall bool // the host ends with the first call, see module.Deps
}

// A Narrower may replace the folders of a call by fewer of them, for which it
// may ask the client; an error is the call's, ErrAsked included. It says how it
// did, and gets that again as from for what the call makes: calls inside it, and
// runs of jobs. inner says that this is a call inside another,
// which cannot ask questions. done runs when the handler has returned; it is not nil
// unless there is an error.
type Narrower func(module string, c *tool.Call, inner bool, from any) (how any, done func(), err error)

// Host holds the modules of this node. Safe for concurrent use.
type Host struct {
	opts Options

	mu      sync.RWMutex
	order   []*instance
	changed []func(module.Audience)
	call    CallFunc
	job     JobFunc
}

// CallFunc runs another tool in the view of a running call of this caller,
// which is depth calls deep itself.
type CallFunc func(ctx context.Context, who tool.Caller, depth int, name string, args json.RawMessage) (tool.Result, error)

// JobFunc starts something that outlives the request of a running call of
// this caller. Every round of it is one run.
type JobFunc func(who tool.Caller, title string, run Round) (id string, err error)

// Round is one run of a job: with what earlier rounds have recorded, and the
// state they left.
type Round func(ctx context.Context, recorded map[string]json.RawMessage, state []byte, n bus.Notes) (bus.Outcome, error)

// NewHost makes a host without modules.
func NewHost(o Options) *Host {
	if o.Roots == nil {
		o.Roots = noRoots{}
	}
	return &Host{opts: o}
}

// Bind gives modules their way back in: to other tools and to jobs. It is
// called once, before the first module is added.
func (h *Host) Bind(call CallFunc, job JobFunc) { h.call, h.job = call, job }

// OnChange registers f to be told, soon after, that offers have changed. It
// is called from a goroutine of the module; f must not block.
func (h *Host) OnChange(f func(module.Audience)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, f)
}

// Add makes a module and serves it. The name is how views and handles know
// it. A module of the same name is replaced: calls that run in it finish, and
// then it is closed.
func (h *Host) Add(ctx context.Context, name string, make module.New) error {
	return h.AddFor(ctx, "", name, make)
}

// AddFor is Add for a module that only one context has: for callers in every
// other it is not there, neither to see nor to call. "" means every context.
func (h *Host) AddFor(ctx context.Context, only, name string, make module.New) error {
	in := &instance{host: h, name: name, only: only, offers: map[module.Audience]*offered{}}
	m, err := make(ctx, h.deps(in))
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	in.module = m
	if in.stop, err = h.opts.Bus.Serve(name, in.serveRequest); err != nil {
		return errors.Join(err, m.Close(context.WithoutCancel(ctx)))
	}
	h.mu.Lock()
	i := slices.IndexFunc(h.order, func(o *instance) bool { return o.name == name })
	var old *instance
	if i >= 0 {
		old, h.order[i] = h.order[i], in
	} else {
		h.order = append(h.order, in)
	}
	h.mu.Unlock()
	h.notifyChanged(module.Audience{})
	if old != nil {
		return old.closeModule(ctx)
	}
	return nil
}

// Remove takes a module away at once, if it is there. end closes it when the
// calls that run in it have finished, or its context is done.
func (h *Host) Remove(name string) (end func(context.Context) error) {
	h.mu.Lock()
	i := slices.IndexFunc(h.order, func(o *instance) bool { return o.name == name })
	if i < 0 {
		h.mu.Unlock()
		return func(context.Context) error { return nil }
	}
	in := h.order[i]
	h.order = slices.Concat(h.order[:i], h.order[i+1:]) // others may be reading the old one
	h.mu.Unlock()
	h.notifyChanged(module.Audience{})
	return in.closeModule
}

// Names lists the modules in the order they were added.
func (h *Host) Names() []string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var names []string
	for _, in := range h.order {
		names = append(names, in.name)
	}
	return names
}

// Offered is what one module offers one audience, as of a generation: an
// unchanged generation is an unchanged offer.
type Offered struct {
	Module     string
	Offer      *module.Offer
	Generation uint64
}

// Offers collects what the modules offer an audience. A module that fails to
// make its offer is left out and logged; it does not take the others along.
func (h *Host) Offers(ctx context.Context, to module.Audience) []Offered {
	h.mu.RLock()
	order := slices.Clone(h.order)
	h.mu.RUnlock()
	out := make([]Offered, 0, len(order))
	for _, in := range order {
		if in.isNotFor(to.Context) {
			continue
		}
		o, err := in.offer(ctx, to)
		if err != nil {
			h.opts.Log.ErrorContext(ctx, "module makes no offer", "module", in.name, "err", err)
			continue
		}
		out = append(out, Offered{in.name, o.offer, o.generation})
	}
	return out
}

// Status is how one module is doing.
type Status struct {
	Module string
	// Offered is what it offers everyone or, of a module that only one context
	// has, what it offers there. If Err is set it is the last good offer, and
	// its Offer is nil if there was none.
	Offered Offered
	Err     error // why it makes no offer; nil means that it makes one
}

// Statuses tells how the modules are doing, in the order they were added.
func (h *Host) Statuses(ctx context.Context) []Status {
	h.mu.RLock()
	order := slices.Clone(h.order)
	h.mu.RUnlock()
	all := make([]Status, 0, len(order))
	for _, in := range order {
		s := Status{Module: in.name, Offered: Offered{Module: in.name}}
		o, err := in.offer(ctx, module.Audience{Context: in.only})
		if s.Err = err; err != nil {
			in.mu.Lock()
			o = in.last
			in.mu.Unlock()
		}
		if o != nil {
			s.Offered.Offer, s.Offered.Generation = o.offer, o.generation
		}
		all = append(all, s)
	}
	return all
}

// EndOwned ends, in all modules, everything for which match holds; see
// module.Owned.
func (h *Host) EndOwned(ctx context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	h.mu.RLock()
	order := slices.Clone(h.order)
	h.mu.RUnlock()
	for _, in := range order {
		if m, ok := in.module.(module.Owned); ok {
			ended = append(ended, m.EndOwned(ctx, match)...)
		}
	}
	return ended
}

// HandOver gives, in all modules, everything for which heir names an owner to
// that owner, where the module can; see module.Transferable.
func (h *Host) HandOver(ctx context.Context, heir module.Heir) (handed []string) {
	h.mu.RLock()
	order := slices.Clone(h.order)
	h.mu.RUnlock()
	for _, in := range order {
		if m, ok := in.module.(module.Transferable); ok {
			handed = append(handed, m.HandOver(ctx, heir)...)
		}
	}
	return handed
}

// Close closes the modules in reverse order, each after its last call.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	order := h.order
	h.order = nil
	h.mu.Unlock()
	var errs []error
	for _, in := range slices.Backward(order) {
		errs = append(errs, in.closeModule(ctx))
	}
	return errors.Join(errs...)
}

// rootsOf finds the folders a caller's calls may touch.
func (h *Host) rootsOf(who tool.Caller) tool.Roots {
	if h.opts.RootsOf != nil {
		if r := h.opts.RootsOf(who); r != nil {
			return r
		}
	}
	return h.opts.Roots
}

func (h *Host) notifyChanged(a module.Audience) {
	h.mu.RLock()
	fs := slices.Clone(h.changed)
	h.mu.RUnlock()
	for _, f := range fs {
		f(a)
	}
}

func (h *Host) deps(in *instance) module.Deps {
	return module.Deps{
		OneCall: h.opts.OneCall,
		Log:     h.opts.Log.With("module", in.name),
		Config: func(into any) error {
			return module.DecodeConfig(h.opts.Configs[in.name], into)
		},
		Changed: in.changed,
		NewID:   h.NewID,
		Call: func(ctx context.Context, parent *tool.Call, name string, args json.RawMessage) (tool.Result, error) {
			if h.call == nil {
				return tool.Result{}, tool.Refuse(tool.CodeUnsupported, "this host runs no calls from inside calls")
			}
			depth := 0
			if rc, ok := parent.Peer.(*running); ok {
				depth = rc.req.Depth
			}
			return h.call(ctx, parent.Caller, depth, name, args)
		},
		Job: func(parent *tool.Call, title string, run tool.Handler) (string, error) {
			if h.job == nil {
				return "", tool.Refuse(tool.CodeUnsupported, "this host runs no jobs")
			}
			id, err := h.job(parent.Caller, title, h.round(in.name, parent, run))
			if rc, ok := parent.Peer.(*running); ok && err == nil {
				rc.started(id)
			}
			return id, err
		},
		Publish: func(subject string, fact any) {
			// The ledger trusts the subjects of the host itself, so an event of
			// a module carries the name of the module.
			e, err := bus.NewEvent("module."+in.name+"."+subject, fact)
			if err != nil {
				h.opts.Log.Error("event cannot be encoded", "subject", subject, "err", err)
				return
			}
			h.opts.Bus.Publish(e)
		},
	}
}

// round makes a job's runs of a handler that is given what its parent call
// was given.
func (h *Host) round(module string, parent *tool.Call, run tool.Handler) Round {
	from := bus.Request{
		Call: parent.ID, Module: module, Method: parent.Method, Name: parent.Name, Caller: new(parent.Caller),
		Args: slices.Clone(parent.Args), Params: slices.Clone(parent.Params),
		Unpaged: parent.Unpaged,
	}
	var narrowed any
	if rc, ok := parent.Peer.(*running); ok {
		narrowed = rc.narrowed
	}
	return func(ctx context.Context, recorded map[string]json.RawMessage, state []byte, n bus.Notes) (bus.Outcome, error) {
		if narrowed != nil {
			ctx = context.WithValue(ctx, narrowedKey{}, narrowed)
		}
		req := from
		req.Recorded, req.State = recorded, state
		return h.execute(ctx, &req, n, run)
	}
}

// NewID makes an unguessable handle that names its kind and this node.
func (h *Host) NewID(kind string) string {
	var b [15]byte
	rand.Read(b[:])
	id := kind + "_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	if h.opts.Node != "" {
		id += "_" + h.opts.Node
	}
	return id
}

// Tools iterates over the tools that modules offer, with the name of the module.
func Tools(all []Offered) iter.Seq2[string, *tool.Tool] {
	return func(yield func(string, *tool.Tool) bool) {
		for _, o := range all {
			for i := range o.Offer.Tools {
				if !yield(o.Module, &o.Offer.Tools[i]) {
					return
				}
			}
		}
	}
}
