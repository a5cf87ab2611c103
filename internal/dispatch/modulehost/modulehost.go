// Package modulehost runs modules on this node: it caches what they offer and turns each request from the bus into
// a call of the right handler.
//
// The modules themselves are in internal/modules; none of them imports another, and this package imports none.
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

// Options configures a Host. Bus and Log are required.
type Options struct {
	Bus   bus.Bus
	Roots tool.Roots // nil means none
	// RootsOf returns the folders of a caller's context if they are not Roots. If it is nil or returns nil, Roots
	// are used. It is called for every call.
	RootsOf func(tool.Caller) tool.Roots
	// Narrow may restrict the folders of a call before its handler runs; nil does not. See Narrower.
	Narrow Narrower
	// Stage gives a call of a task the view of the task; nil if this host stages nothing. done is
	// called when the handler has returned; it is not nil unless there is an error. changes says
	// that the call may change something.
	Stage func(c *tool.Call, changes bool) (done func(), err error)
	Node  string // the name of this node in handles
	// Elsewhere runs a request on the other nodes of the cluster; nil without one.
	Elsewhere func(ctx context.Context, r *bus.Request) []bus.NodeOutcome
	Log       *slog.Logger
	// Configs are what Deps.Config decodes, by module; see module.DecodeConfig.
	Configs map[string]json.RawMessage

	OneCall bool // the host ends with the first call, see module.Deps
}

// A Narrower may replace the folders of a call by fewer of them, for which it may ask the client; an error becomes
// the call's, ErrAsked included. It returns how it narrowed the call, and receives that value as from for calls
// inside the call and for runs of its jobs. inner means that this is a call inside another, which cannot ask
// questions. done is called when the handler has returned; it is not nil unless there is an error.
type Narrower func(module string, c *tool.Call, inner bool, from any) (how any, done func(), err error)

// Host runs the modules of this node. It is safe for concurrent use.
type Host struct {
	opts Options

	mu      sync.RWMutex
	order   []*instance
	changed []func(module.Audience)
	call    CallFunc
	program ProgramFunc
	job     JobFunc
}

// CallFunc runs another tool in the view of a running call of this caller; depth is the depth of the running call.
type CallFunc func(ctx context.Context, who tool.Caller, depth int, name string,
	args json.RawMessage) (tool.Result, error)

// ProgramFunc is CallFunc for a call of a program.
type ProgramFunc func(ctx context.Context, who tool.Caller, depth int, call *module.InnerCall) (tool.Result, error)

// JobFunc starts a job that outlives the request of a running call of this caller. Every round of the job is one
// run. from is what Restart needs; nil means that the job ends with this host.
type JobFunc func(who tool.Caller, title string, run Round, from *Start) (id string, err error)

// Round is one run of a job, with the values that earlier rounds recorded, and the state they left.
type Round func(ctx context.Context, recorded map[string]json.RawMessage, state []byte,
	n bus.Notes) (bus.Outcome, error)

// NewHost returns a host without modules.
func NewHost(o Options) *Host {
	if o.Roots == nil {
		o.Roots = noRoots{}
	}
	return &Host{opts: o}
}

// Bind sets the functions by which modules call other tools and start jobs. It is called once, before the first
// module is added.
func (h *Host) Bind(call CallFunc, program ProgramFunc, job JobFunc) {
	h.call, h.program, h.job = call, program, job
}

// OnChange registers a function that is called soon after offers have changed, from a goroutine of the module. f
// must not block.
func (h *Host) OnChange(f func(module.Audience)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, f)
}

// Add creates a module and serves it under a name that views and handles use. It replaces a module of the same
// name, which is closed when its running calls have ended.
func (h *Host) Add(ctx context.Context, name string, make module.New) error {
	return h.AddFor(ctx, "", name, make)
}

// AddFor is Add for a module that only one context has: callers in other contexts can neither see nor call it. ""
// means every context.
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

// Remove removes a module at once, if it exists. end closes it when its running calls have ended, or ctx is done.
func (h *Host) Remove(name string) (end func(context.Context) error) {
	h.mu.Lock()
	i := slices.IndexFunc(h.order, func(o *instance) bool { return o.name == name })
	if i < 0 {
		h.mu.Unlock()
		return func(context.Context) error { return nil }
	}
	in := h.order[i]
	h.order = slices.Concat(h.order[:i], h.order[i+1:]) // another goroutine may be reading the old slice
	h.mu.Unlock()
	h.notifyChanged(module.Audience{})
	return in.closeModule
}

// Names returns the names of the modules in the order in which they were added.
func (h *Host) Names() []string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var names []string
	for _, in := range h.order {
		names = append(names, in.name)
	}
	return names
}

// Offered is what one module offers one audience, with its generation: if the generation is the same, so is the
// offer.
type Offered struct {
	Module     string
	Offer      *module.Offer
	Generation uint64
}

// Offers returns what the modules offer an audience. A module that cannot list its offer is left out and logged,
// without effect on the others.
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

// Status is the state of one module.
type Status struct {
	Module string
	// Offered is what the module offers every caller or, if only one context has it, what it offers there. If Err
	// is set it is the last good offer, and its Offer is nil if there was none.
	Offered Offered
	Err     error // why it cannot list its offer; nil if it can
}

// Statuses returns the states of the modules, in the order in which they were added.
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

// EndOwned ends, in all modules, everything that match accepts; see module.Owned.
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

// HandOver gives what belongs to an owner to the owner that heir names for it, in all modules that can; see
// module.Transferable.
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

// rootsOf returns the folders that a caller's calls may access.
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
		Changed:   in.changed,
		NewID:     h.NewID,
		Node:      h.opts.Node,
		Elsewhere: h.elsewhere,
		Call: func(ctx context.Context, parent *tool.Call, name string, args json.RawMessage) (tool.Result, error) {
			if h.call == nil {
				return tool.Result{}, tool.Refuse(tool.CodeUnsupported, "this host runs no calls from inside calls")
			}
			return h.call(ctx, parent.Caller, depthOf(parent), name, args)
		},
		Inner: func(ctx context.Context, parent *tool.Call, call *module.InnerCall) (tool.Result, error) {
			if h.program == nil {
				return tool.Result{}, tool.Refuse(tool.CodeUnsupported, "this host runs no calls from inside calls")
			}
			return h.program(ctx, parent.Caller, depthOf(parent), call)
		},
		Job: func(parent *tool.Call, title string, run tool.Handler) (string, error) {
			if h.job == nil {
				return "", tool.Refuse(tool.CodeUnsupported, "this host runs no jobs")
			}
			round := h.round(in.name, parent, run)
			rc, _ := parent.Peer.(*running)
			if id, ok := rc.captureRound(round); ok {
				return id, nil
			}
			id, err := h.job(parent.Caller, title, round, rc.start())
			if rc != nil && err == nil {
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

// elsewhere is module.Deps.Elsewhere.
func (h *Host) elsewhere(ctx context.Context, c *tool.Call) []module.NodeResult {
	rc, ok := c.Peer.(*running)
	if !ok || h.opts.Elsewhere == nil || rc.req.Copy {
		return nil
	}
	var all []module.NodeResult
	for _, o := range h.opts.Elsewhere(ctx, rc.req) {
		all = append(all, module.NodeResult{Node: o.Node, Result: o.Outcome.Result, Err: o.Err})
	}
	return all
}

// depthOf returns how deep a running call is inside others.
func depthOf(c *tool.Call) int {
	if rc, ok := c.Peer.(*running); ok {
		return rc.req.Depth
	}
	return 0
}

// round returns the runs of a job's handler, which receives what its parent call received.
func (h *Host) round(module string, parent *tool.Call, run tool.Handler) Round {
	from := bus.Request{
		Call: parent.ID, Module: module, Method: parent.Method, Name: parent.Name, Caller: new(parent.Caller),
		Args: slices.Clone(parent.Args), Params: slices.Clone(parent.Params),
		Unpaged: parent.Unpaged, Logs: parent.Logs, Task: parent.Task, Stages: parent.Task != "",
	}
	var narrowed any
	if rc, ok := parent.Peer.(*running); ok {
		narrowed = rc.narrowed
	}
	return func(ctx context.Context, recorded map[string]json.RawMessage, state []byte,
		n bus.Notes) (bus.Outcome, error) {
		if narrowed != nil {
			ctx = context.WithValue(ctx, narrowedKey{}, narrowed)
		}
		req := from
		req.Recorded, req.State = recorded, state
		again, _ := ctx.Value(againKey{}).(*restart)
		return h.execute(ctx, &req, n, run, func(rc *running) { rc.again = again })
	}
}

// NewID returns an unguessable handle that contains its kind and this node.
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
