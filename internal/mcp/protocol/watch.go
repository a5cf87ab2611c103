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

// watches holds the open watches of resources: one for all subscribers with the same view, or one for
// each subscriber.
type watches struct {
	mu  sync.Mutex
	all map[watchKey]*sharedWatch
}

type watchKey struct {
	context   string
	cut       permit.Cut
	principal string // "" if all callers with the same cut have the same view
	module    string
	uri       string
	each      *func(json.RawMessage) // the one subscriber, if each has a watch of its own
	here      bool                   // on this node alone, because another one watches it on all
}

// sharedWatch is one watch of a resource that several subscribers share.
type sharedWatch struct {
	refs int // subscribers, including future ones; guarded by watches.mu

	opening  chan struct{} // holds a token while the module opens or closes the watch
	caller   tool.Caller
	resource *module.Resource // the watched resource
	engine   *Engine          // watches it on other nodes, too; nil if the watch is on this one alone
	stop     func()           // nil while it is not open
	closed   bool             // the last subscriber has left; it is not reused

	mu   sync.Mutex
	subs map[*func(json.RawMessage)]struct{}
}

func (w *watches) init() { w.all = make(map[watchKey]*sharedWatch) }

// watchResource subscribes changed to a resource of a caller's view. changed must not block. If
// the resource has no notifications, the subscription succeeds and never calls changed.
func (e *Engine) watchResource(
	ctx context.Context,
	f *session.Facts,
	v *views.View,
	of *views.Entry,
	uri string,
	changed func(json.RawMessage),
) (stop func(), err error) {
	return e.watch(ctx, f, v, of, watchKey{uri: uri}, changed)
}

// WatchHere watches a resource on this node for a caller that subscribed to it on another one. An error is a
// *tool.Refusal if there is no such resource here.
func (e *Engine) WatchHere(
	ctx context.Context, who tool.Caller, uri string, changed func(json.RawMessage),
) (stop func(), err error) {
	f := &session.Facts{Caller: who, Cut: e.opts.Views.Cut(who)}
	v, err := e.opts.Views.View(ctx, &f.Caller, f.Cut)
	if err != nil {
		return nil, err
	}
	entry, _ := v.Resource(uri)
	if entry == nil || !entry.Resource.AllNodes {
		return nil, tool.Refuse(tool.CodeNotFound, "resource not found: %s", uri)
	}
	return e.watch(ctx, f, v, entry, watchKey{uri: uri, here: true}, changed)
}

// watch adds a subscriber to the watch of a key, of which the URI and here are given.
func (e *Engine) watch(
	ctx context.Context,
	f *session.Facts,
	v *views.View,
	of *views.Entry,
	k watchKey,
	changed func(json.RawMessage),
) (stop func(), err error) {
	if of.Resource.Watch == nil {
		return func() {}, nil
	}
	k.context, k.cut, k.module = f.Context, f.Cut, of.Module
	if v.Personal() {
		k.principal = f.Principal
	}
	if of.Resource.Each {
		k.each = &changed
	}
	if err := e.checkWatch(ctx, f, of, k.uri); err != nil {
		return nil, err
	}
	w := &e.watches
	x := w.acquire(e, k)
	if err := x.openWatch(f.Caller, of.Resource, k.uri); err != nil {
		w.releaseWatch(k, x)
		return nil, err
	}
	x.mu.Lock()
	x.subs[&changed] = struct{}{}
	x.mu.Unlock()
	return sync.OnceFunc(func() {
		x.mu.Lock()
		delete(x.subs, &changed)
		x.mu.Unlock()
		w.releaseWatch(k, x)
	}), nil
}

// watchTimeout limits the check whether a caller may watch a resource.
const watchTimeout = 10 * time.Second

// checkWatch returns an error if a caller may not watch a resource. The permission is
// that of reading it.
func (e *Engine) checkWatch(ctx context.Context, f *session.Facts, of *views.Entry, uri string) error {
	call := &dispatch.Request{Facts: f, Entry: of, Method: "resources/subscribe", Name: uri, Args: []byte("{}")}
	if vars := of.Vars(uri); len(vars) > 0 {
		call.Args, _ = json.Marshal(vars)
	}
	if of.Resource.MayWatch == nil {
		if v := of.Gate.Decide(call.Args, &f.Caller); v.Kind != permit.Allow {
			return tool.Refuse(tool.CodeDenied, "%s: it may not be read here", uri)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	_, err := e.opts.Calls.Do(ctx, call)
	return err
}

func (w *watches) acquire(e *Engine, k watchKey) *sharedWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.all[k]
	if x == nil {
		x = &sharedWatch{opening: make(chan struct{}, 1), subs: make(map[*func(json.RawMessage)]struct{})}
		if e.opts.Elsewhere != nil && !k.here {
			x.engine = e
		}
		w.all[k] = x
	}
	x.refs++
	return x
}

// releaseWatch closes the watch after its last subscriber.
func (w *watches) releaseWatch(k watchKey, x *sharedWatch) {
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
	x.closed = true
	if x.stop != nil {
		x.stop()
		x.stop = nil
	}
}

// openWatch opens the watch unless it is open. Concurrent first subscribers wait for one of
// them to do it.
func (x *sharedWatch) openWatch(who tool.Caller, of *module.Resource, uri string) error {
	x.opening <- struct{}{}
	defer func() { <-x.opening }()
	if x.stop != nil {
		return nil
	}
	x.caller = who
	return x.replace(of, uri)
}

// replace opens the watch of a resource and closes the previous one; a nil resource opens none. The
// caller holds the token.
func (x *sharedWatch) replace(of *module.Resource, uri string) error {
	earlier := x.stop
	x.resource, x.stop = of, nil
	if of != nil {
		stop, err := of.Watch(x.caller, uri, x.notify)
		if err != nil {
			x.resource, x.stop = nil, earlier
			return err
		}
		if stop == nil {
			stop = func() {}
		}
		x.stop = stop
		if x.engine != nil && of.AllNodes {
			others := x.engine.opts.Elsewhere(x.caller, uri, x.notify)
			x.stop = func() { others(); stop() }
		}
	}
	if earlier != nil {
		earlier()
	}
	return nil
}

// renew moves watches to the resources that are offered now, because the watch of a
// module that was replaced sends nothing.
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

// renew replaces one watch if its resource has changed, and releases the token.
func (x *sharedWatch) renew(ctx context.Context, e *Engine, k watchKey) {
	entry, facts, ok := e.currentEntry(ctx, x.caller, k)
	var of *module.Resource
	if entry != nil {
		of = entry.Resource
	}
	if !ok || x.closed || of == x.resource {
		<-x.opening
		return
	}
	e.work.Go(func() {
		defer func() { <-x.opening }()
		if of != nil {
			if err := e.checkWatch(ctx, facts, entry, k.uri); err != nil {
				of = nil
			}
		}
		if err := x.replace(of, k.uri); err != nil {
			e.opts.Log.Warn("watch is not renewed", "uri", k.uri, "module", k.module, "err", err)
		}
	})
}

// currentEntry finds the resource of a watch in the caller's current view; nil if it was removed. It
// returns false if the view cannot be determined.
func (e *Engine) currentEntry(ctx context.Context, who tool.Caller, k watchKey) (*views.Entry, *session.Facts, bool) {
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

// notify calls all current subscribers.
func (x *sharedWatch) notify(meta json.RawMessage) {
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
