package jobs

import (
	"context"
	"sync"
)

// watcher delivers the changes of one job to one caller, one at a time, on a goroutine that runs only while there
// are changes to deliver.
type watcher struct {
	workers *workers
	f       func(Record)
	removed chan struct{} // closed when the record is removed

	mu      sync.Mutex
	queue   []Record
	busy    bool
	stopped bool
}

// push adds a change. Notes and progress replace each other; an end or a question is never replaced, so the queue
// is no longer than the job has rounds.
func (w *watcher) push(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if n := len(w.queue); n > 0 && w.queue[n-1].Status == Working {
		w.queue[n-1] = r
	} else {
		w.queue = append(w.queue, r)
	}
	if !w.busy {
		w.busy = w.workers.Go(w.drain)
	}
}

func (w *watcher) drain() {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 || w.stopped {
			w.busy = false
			w.mu.Unlock()
			return
		}
		r := w.queue[0]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		w.f(r)
	}
}

func (w *watcher) stopWatching() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped, w.queue = true, nil
}

func (w *watcher) dropOldest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.stopped, w.queue = true, nil
		close(w.removed)
	}
}

// notifyWatchers sends the newest state to all watchers. Manager.mu must be held.
func (e *live) notifyWatchers() {
	for w := range e.watchers {
		w.push(e.row.Record)
	}
}

// Watch calls f with the record after every visible change from now on, one call at a time, in order. Progress
// that arrives faster than f returns is merged; an end and a question are never left out. f may call any method
// here. After stop no call begins, though one may still be running.
func (m *Manager) Watch(owner, id string, f func(Record)) (stop func(), err error) {
	w, err := m.watch(owner, id, f)
	if err != nil {
		return nil, err
	}
	return func() { m.unwatch(id, w) }, nil
}

func (m *Manager) watch(owner, id string, f func(Record)) (*watcher, error) {
	r, err := m.store.readRow(id)
	if err != nil {
		return nil, err
	}
	if r.Owner != owner || r.expired(now()) {
		return nil, ErrNotFound
	}
	w := &watcher{workers: &m.workers, f: f, removed: make(chan struct{})}
	m.mu.Lock()
	e := m.live[id]
	if e == nil {
		e = &live{row: r, watchers: map[*watcher]struct{}{}}
		m.live[id] = e
	}
	e.watchers[w] = struct{}{}
	m.mu.Unlock()
	m.refresh(id) // it may have changed between the read and the watch
	return w, nil
}

func (m *Manager) unwatch(id string, w *watcher) {
	w.stopWatching()
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live[id]; e != nil {
		delete(e.watchers, w)
		m.removeLive(id)
	}
}

// Wait waits until until reports true for the record, and returns it. The error is ErrNotFound (also if the job
// expires meanwhile), ErrTerminal with the record if the job ended otherwise, ErrStopping, or the cause of ctx's
// end.
func (m *Manager) Wait(ctx context.Context, owner, id string, until func(Record) bool) (Record, error) {
	changes, done := make(chan Record), make(chan struct{})
	defer close(done)
	w, err := m.watch(owner, id, func(r Record) {
		select {
		case changes <- r:
		case <-done:
		}
	})
	if err != nil {
		return Record{}, err
	}
	defer m.unwatch(id, w)
	for r, err := m.Get(owner, id); ; {
		if err != nil || until(r) {
			return r, err
		}
		if r.Status.Terminal() {
			return r, ErrTerminal
		}
		select {
		case r = <-changes:
		case <-w.removed:
			return Record{}, ErrNotFound
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-m.ctx.Done():
			return r, ErrStopping
		}
	}
}
