package protocol

import (
	"encoding/json"
	"sync"

	"gatehouse/internal/contexts"
	"gatehouse/internal/permit"
)

// watches are the open watches of resources: one for all the subscribers of
// one view.
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
}

// watched is one open watch.
type watched struct {
	refs int // subscribers, and those that are about to be; guarded by watches.mu

	opening sync.Mutex // held while the module opens or closes the watch
	stop    func()     // nil while it is not open

	mu   sync.Mutex
	subs map[*func(json.RawMessage)]struct{}
}

func (w *watches) init() { w.all = make(map[watchKey]*watched) }

// watch subscribes changed to a resource of the request's view; changed never
// blocks. A resource that never tells of changes can be subscribed to all the
// same.
func (r *request) watch(e *contexts.Entry, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	if e.Resource.Watch == nil {
		return func() {}, nil
	}
	k := watchKey{context: r.facts.Context, cut: r.facts.Cut, module: e.Module, uri: uri}
	if r.view.Personal() {
		k.principal = r.facts.Principal
	}
	w := &r.e.watches
	x := w.take(k)
	if err := x.open(func() (func(), error) { return e.Resource.Watch(r.facts.Caller, uri, x.tell) }); err != nil {
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

func (w *watches) take(k watchKey) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.all[k]
	if x == nil {
		x = &watched{subs: make(map[*func(json.RawMessage)]struct{})}
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
	x.opening.Lock()
	defer x.opening.Unlock()
	if x.stop != nil {
		x.stop()
		x.stop = nil
	}
}

// open opens the watch unless it is open. Of several first subscribers one
// does it and the others wait.
func (x *watched) open(watch func() (func(), error)) error {
	x.opening.Lock()
	defer x.opening.Unlock()
	if x.stop != nil {
		return nil
	}
	stop, err := watch()
	if stop == nil {
		stop = func() {}
	}
	if err == nil {
		x.stop = stop
	}
	return err
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
