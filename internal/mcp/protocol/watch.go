package protocol

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/session"
	"gatehouse/module"
	"gatehouse/tool"
)

// watches are the open watches of resources: one for all the subscribers of
// one view, or one for each subscriber.
type watches struct {
	mu  sync.Mutex
	all map[watchKey]*watched
}

type watchKey struct {
	context   string
	cut       permit.Cut
	principal string // "" where everyone of the same cut has the same view
	module    string
	uri       string
	each      *func(json.RawMessage) // the one subscriber, where each has a watch of its own
}

// watched is one open watch.
type watched struct {
	refs int // subscribers, and those that are about to be; guarded by watches.mu

	opening chan struct{} // holds a token while the module opens or closes the watch
	caller  tool.Caller
	of      *module.Resource // whose watch it is
	stop    func()           // nil while it is not open
	dead    bool             // nobody is subscribed any more, nor will be

	mu   sync.Mutex
	subs map[*func(json.RawMessage)]struct{}
}

func (w *watches) init() { w.all = make(map[watchKey]*watched) }

// watch subscribes changed to a resource of a caller's view; changed never
// blocks. A resource that never tells of changes can be subscribed to all the
// same.
func (e *Engine) watch(ctx context.Context, f *session.Facts, v *views.View, of *views.Entry, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	if of.Resource.Watch == nil {
		return func() {}, nil
	}
	k := watchKey{context: f.Context, cut: f.Cut, module: of.Module, uri: uri}
	if v.Personal() {
		k.principal = f.Principal
	}
	if of.Resource.Each {
		k.each = &changed
	}
	if err := e.mayWatch(ctx, f, of, uri); err != nil {
		return nil, err
	}
	w := &e.watches
	x := w.take(k)
	if err := x.open(f.Caller, of.Resource, uri); err != nil {
		w.drop(k, x)
		return nil, err
	}
	x.mu.Lock()
	x.subs[&changed] = struct{}{}
	x.mu.Unlock()
	return sync.OnceFunc(func() {
		x.mu.Lock()
		delete(x.subs, &changed)
		x.mu.Unlock()
		w.drop(k, x)
	}), nil
}

// watchPatience is how long it may take to find out whether a resource may be
// watched.
const watchPatience = 10 * time.Second

// mayWatch reports why a caller may not watch a resource: the gate is that of
// reading it.
func (e *Engine) mayWatch(ctx context.Context, f *session.Facts, of *views.Entry, uri string) error {
	call := &dispatch.Request{Facts: f, Entry: of, Method: "resources/subscribe", Name: uri, Args: []byte("{}")}
	if vars := of.Vars(uri); len(vars) > 0 {
		call.Args, _ = json.Marshal(vars)
	}
	if of.Resource.MayWatch == nil {
		if v := of.Gate.Decide(call.Args, &f.Caller); v.Kind != permit.Allow {
			return tool.Refuse("denied", "%s: it may not be read here", uri)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	_, err := e.opts.Calls.Do(ctx, call)
	return err
}

func (w *watches) take(k watchKey) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.all[k]
	if x == nil {
		x = &watched{opening: make(chan struct{}, 1), subs: make(map[*func(json.RawMessage)]struct{})}
		w.all[k] = x
	}
	x.refs++
	return x
}

// drop closes the watch after its last subscriber.
func (w *watches) drop(k watchKey, x *watched) {
	w.mu.Lock()
	x.refs--
	last := x.refs == 0
	if last {
		delete(w.all, k)
	}
	w.mu.Unlock()
	if !last {
		return
	}
	x.opening <- struct{}{}
	defer func() { <-x.opening }()
	x.dead = true
	if x.stop != nil {
		x.stop()
		x.stop = nil
	}
}

// open opens the watch unless it is open. Of several first subscribers one
// does it and the others wait.
func (x *watched) open(who tool.Caller, of *module.Resource, uri string) error {
	x.opening <- struct{}{}
	defer func() { <-x.opening }()
	if x.stop != nil {
		return nil
	}
	x.caller = who
	return x.turn(of, uri)
}

// turn opens the watch of a resource in the place of what was open; nil opens
// none. The token is held.
func (x *watched) turn(of *module.Resource, uri string) error {
	earlier := x.stop
	x.of, x.stop = of, nil
	if of != nil {
		stop, err := of.Watch(x.caller, uri, x.tell)
		if err != nil {
			x.of, x.stop = nil, earlier
			return err
		}
		if stop == nil {
			stop = func() {}
		}
		x.stop = stop
	}
	if earlier != nil {
		earlier()
	}
	return nil
}

// renew turns watches to the resources as they are offered now: a module may
// have been replaced, and its earlier self tells nothing any more.
func (w *watches) renew(ctx context.Context, e *Engine) {
	w.mu.Lock()
	open := maps.Clone(w.all)
	w.mu.Unlock()
	for k, x := range open {
		select {
		case x.opening <- struct{}{}:
			x.renew(ctx, e, k)
		default: // it is being opened; others do not wait for that
			e.work.Go(func() {
				x.opening <- struct{}{}
				x.renew(ctx, e, k)
			})
		}
	}
}

// renew turns one watch, if it must be, and gives back the token.
func (x *watched) renew(ctx context.Context, e *Engine, k watchKey) {
	entry, facts, ok := e.offeredNow(ctx, x.caller, k)
	var of *module.Resource
	if entry != nil {
		of = entry.Resource
	}
	if !ok || x.dead || of == x.of {
		<-x.opening
		return
	}
	e.work.Go(func() {
		defer func() { <-x.opening }()
		if of != nil {
			if err := e.mayWatch(ctx, facts, entry, k.uri); err != nil {
				of = nil
			}
		}
		if err := x.turn(of, k.uri); err != nil {
			e.opts.Log.Warn("watch is not renewed", "uri", k.uri, "module", k.module, "err", err)
		}
	})
}

// offeredNow finds the resource of a watch in the caller's view, nil when it
// is not there any more. It reports false when there is no telling.
func (e *Engine) offeredNow(ctx context.Context, who tool.Caller, k watchKey) (*views.Entry, *session.Facts, bool) {
	f := &session.Facts{Caller: who, Cut: e.opts.Views.Cut(who)}
	v, err := e.opts.Views.View(ctx, &f.Caller, f.Cut)
	if err != nil {
		return nil, f, ctx.Err() == nil
	}
	entry, _ := v.Resource(k.uri)
	if entry == nil || entry.Module != k.module || entry.Resource.Watch == nil {
		return nil, f, true
	}
	return entry, f, true
}

// tell passes a change on to everyone who is subscribed at the moment.
func (x *watched) tell(meta json.RawMessage) {
	x.mu.Lock()
	fs := make([]func(json.RawMessage), 0, len(x.subs))
	for f := range x.subs {
		fs = append(fs, *f)
	}
	x.mu.Unlock()
	for _, f := range fs {
		f(meta)
	}
}
