package modulehost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/module"
	"gatehouse/tool"
)

// instance is one generation of one module.
type instance struct {
	host   *Host
	name   string
	only   string // the only context that has it; "" means every context
	module module.Module
	stop   func(context.Context) error

	mu     sync.Mutex
	offers map[module.Audience]*offered // valid until changed
	epoch  uint64                       // how often changed was called
	last   *offered                     // the last good offer to no principal; nil before the first
}

// isNotFor reports whether callers in a context cannot see the module.
func (in *instance) isNotFor(context string) bool { return in.only != "" && in.only != context }

// offered is an offer with its handlers by name.
type offered struct {
	offer      *module.Offer
	generation uint64
	tools      map[string]*tool.Tool
	reads      map[string]*module.Resource // by URI or template
	prompts    map[string]*module.Prompt
}

// generations counts generations over all modules of the process, so that the number alone shows whether anything
// changed.
var generations atomic.Uint64

// offer returns what the module offers, from the cache if nothing changed.
func (in *instance) offer(ctx context.Context, to module.Audience) (*offered, error) {
	in.mu.Lock()
	if o := in.offers[to]; o != nil {
		in.mu.Unlock()
		return o, nil
	}
	if o := in.offers[module.Audience{}]; o != nil && !o.offer.Personal {
		in.mu.Unlock()
		return o, nil
	}
	epoch := in.epoch
	in.mu.Unlock()

	of, err := in.requestOffer(ctx, to)
	if err != nil {
		return nil, err
	}
	o := index(of)
	in.mu.Lock()
	defer in.mu.Unlock()
	if to.Principal == "" || !of.Personal {
		in.last = o
	}
	if in.epoch != epoch {
		return o, nil // changed meanwhile: valid for this call only
	}
	if !of.Personal {
		to = module.Audience{}
	}
	if old := in.offers[to]; old != nil {
		return old, nil
	}
	if len(in.offers) >= 4096 {
		clear(in.offers)
	}
	in.offers[to] = o
	return o, nil
}

// requestOffer requests an offer from the module. A panic of the module is an error.
func (in *instance) requestOffer(ctx context.Context, to module.Audience) (of *module.Offer, err error) {
	defer func() {
		if p := recover(); p != nil {
			of, err = nil, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if of, err = in.module.Offer(ctx, to); of == nil && err == nil {
		err = errors.New("the module returned neither an offer nor an error")
	}
	return of, err
}

func index(of *module.Offer) *offered {
	o := &offered{
		offer:      of,
		generation: generations.Add(1),
		tools:      make(map[string]*tool.Tool, len(of.Tools)),
		reads:      make(map[string]*module.Resource, len(of.Resources)+len(of.Templates)),
		prompts:    make(map[string]*module.Prompt, len(of.Prompts)),
	}
	for i := range of.Tools {
		o.tools[of.Tools[i].Name] = &of.Tools[i]
	}
	for i := range of.Resources {
		o.reads[of.Resources[i].URI] = &of.Resources[i]
	}
	for i := range of.Templates {
		o.reads[of.Templates[i].URI] = &of.Templates[i]
	}
	for i := range of.Prompts {
		o.prompts[of.Prompts[i].Name] = &of.Prompts[i]
	}
	return o
}

// changed removes the stale offers and notifies the host. An audience that names only a principal means that
// principal in every context, and the other way round.
func (in *instance) changed(a module.Audience) {
	in.mu.Lock()
	in.epoch++
	maps.DeleteFunc(in.offers, func(of module.Audience, _ *offered) bool {
		return of == (module.Audience{}) ||
			(a.Principal == "" || a.Principal == of.Principal) && (a.Context == "" || a.Context == of.Context)
	})
	in.mu.Unlock()
	in.host.notifyChanged(a)
}

// serveRequest runs one request from the bus.
func (in *instance) serveRequest(ctx context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
	if in.isNotFor(r.Caller.Context) {
		return bus.Outcome{}, tool.Refuse(tool.CodeNotFound, "%s is not offered", r.Name)
	}
	o, err := in.offer(ctx, module.Audience{Principal: r.Caller.Principal, Context: r.Caller.Context})
	if err != nil {
		return bus.Outcome{}, fmt.Errorf("offer of %s: %w", in.name, err)
	}
	run := o.handler(r)
	if run == nil {
		return bus.Outcome{}, tool.Refuse(tool.CodeNotFound, "%s is no longer offered", r.Name)
	}
	return in.host.execute(ctx, r, n, run, func(rc *running) { rc.restartable = o.restartable(r) })
}

// execute runs a handler. A panic affects no other call: it is logged with an id, and the caller receives that id.
func (h *Host) execute(
	ctx context.Context,
	r *bus.Request,
	n bus.Notes,
	run tool.Handler,
	with func(*running),
) (out bus.Outcome, err error) {
	rc := newRunning(h, r, n)
	with(rc)
	defer func() {
		rc.endCall()
		if v := recover(); v != nil {
			incident := h.NewID("incident")
			h.opts.Log.ErrorContext(ctx, "handler panicked", "incident", incident, "name", r.Name, "call", r.Call,
				"panic", v, "stack", string(debug.Stack()))
			out, err = bus.Outcome{}, &tool.WireError{
				Code:    codeInternal,
				Message: "internal error, see " + incident + " in the log",
			}
		}
	}()
	ctx, done, err := h.narrow(ctx, rc)
	if err != nil {
		return rc.outcome(tool.Result{}, err)
	}
	defer done()
	if r.Task != "" && h.opts.Stage != nil {
		leave, err := h.opts.Stage(&rc.call, r.Stages)
		if err != nil {
			return rc.outcome(tool.Result{}, err)
		}
		defer leave()
	}
	res, err := run(ctx, &rc.call)
	return rc.outcome(res, err)
}

// narrowedKey is the key under which a context holds how the call that it belongs to was narrowed.
type narrowedKey struct{}

func (h *Host) narrow(ctx context.Context, rc *running) (context.Context, func(), error) {
	if h.opts.Narrow == nil {
		return ctx, func() {}, nil
	}
	how, done, err := h.opts.Narrow(rc.req.Module, &rc.call, rc.req.Depth > 0, ctx.Value(narrowedKey{}))
	if how == nil {
		return ctx, done, err
	}
	rc.narrowed = how
	return context.WithValue(ctx, narrowedKey{}, how), done, err
}

const codeInternal = -32603

func (o *offered) handler(r *bus.Request) tool.Handler {
	name := r.Name
	if r.Entry != "" {
		name = r.Entry
	}
	switch r.Method {
	case "tools/call":
		if t := o.tools[name]; t != nil {
			return t.Run
		}
	case "resources/read":
		if res := o.reads[name]; res != nil {
			return res.Read
		}
	case "resources/subscribe":
		if res := o.reads[name]; res != nil {
			return res.MayWatch
		}
	case "prompts/get":
		if p := o.prompts[name]; p != nil {
			return p.Get
		}
	case "completion/complete":
		if p := o.prompts[name]; p != nil {
			return p.Complete
		}
		if res := o.reads[name]; res != nil {
			return res.Complete
		}
	default:
		return o.offer.Methods[r.Method]
	}
	return nil
}

// closeModule waits for the running calls until ctx is done, and closes the module.
func (in *instance) closeModule(ctx context.Context) error {
	err := in.stop(ctx)
	if cerr := in.module.Close(ctx); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return fmt.Errorf("close module %s: %w", in.name, err)
	}
	return nil
}
