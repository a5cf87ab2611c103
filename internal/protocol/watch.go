package protocol

import (
	"encoding/json"
	"sync"

	"gatehouse/internal/contexts"
	"gatehouse/internal/permit"
	"gatehouse/internal/session"
)

// watches are the open watches of resources: one for all the subscribers of
// one view.
type watches struct {
	mu  sync.Mutex
	all map[watchKey]*watched
}

type watchKey struct {
	context string
	cut     permit.Cut
	module  string
	uri     string
}

// watched is one open watch. Its lock is held while the module opens it, so
// that two first subscribers open one.
type watched struct {
	mu   sync.Mutex
	subs map[*func(json.RawMessage)]struct{}
	stop func()
}

func (w *watches) init() { w.all = make(map[watchKey]*watched) }

// open subscribes changed to a resource; changed never blocks. A resource
// that never tells of changes can be subscribed to all the same.
func (w *watches) open(e *contexts.Entry, f *session.Facts, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	if e.Resource.Watch == nil {
		return func() {}, nil
	}
	k := watchKey{f.Context, f.Cut, e.Module, uri}
	w.mu.Lock()
	x := w.all[k]
	if x == nil {
		x = &watched{subs: make(map[*func(json.RawMessage)]struct{})}
		w.all[k] = x
	}
	w.mu.Unlock()

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stop == nil {
		if x.stop, err = e.Resource.Watch(f.Caller, uri, x.tell); err != nil {
			x.stop = nil
			return nil, err
		}
		w.mu.Lock()
		w.all[k] = x // it may have been closed and forgotten meanwhile
		w.mu.Unlock()
	}
	x.subs[&changed] = struct{}{}
	var once sync.Once
	return func() { once.Do(func() { w.leave(k, x, &changed) }) }, nil
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

func (w *watches) leave(k watchKey, x *watched, f *func(json.RawMessage)) {
	x.mu.Lock()
	delete(x.subs, f)
	var stop func()
	if len(x.subs) == 0 {
		stop, x.stop = x.stop, nil
	}
	x.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stop == nil && len(x.subs) == 0 && w.all[k] == x {
		delete(w.all, k)
	}
}
