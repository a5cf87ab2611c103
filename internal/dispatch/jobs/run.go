package jobs

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	lookEvery  = time.Second // for what other hosts did
	sweepEvery = time.Minute
	stopText   = "the host stopped while this job ran; it may have done part of its work"
)

// Run removes expired jobs and follows what other hosts on the same file do, until ctx is done. Then it starts
// nothing new, ends the contexts of all rounds with ErrStopping, and returns when the goroutines of the Manager
// have ended.
func (m *Manager) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var swept time.Time
	var seen int64
	m.dropMoved()
	for ctx.Err() == nil {
		if time.Since(swept) >= sweepEvery {
			swept = time.Now()
			m.storeFailures()
			m.removeExpired()
		}
		seen = m.catchUp(seen)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	m.stop(ErrStopping)
	return m.workers.Wait(context.Background())
}

// Close ends running jobs, waits for them until ctx is done, fails those that still run, and closes the file. It
// is safe to call twice.
func (m *Manager) Close(ctx context.Context) error {
	m.stop(ErrStopping)
	err := m.workers.Wait(ctx)
	m.storeFailures()
	for _, id := range m.liveIDs(true) {
		m.failAs(id, stopText, func(r *row) bool {
			return r.Status == Working && r.host == m.store.host && !m.survives(r.Record)
		})
	}
	if e := m.workers.Wait(ctx); err == nil {
		err = e // the last changes have reached the watchers
	}
	m.workers.closeToNew()
	if e := m.store.closeFile(); err == nil {
		err = e
	}
	return err
}

// Live returns the number of jobs that this process runs or watches.
func (m *Manager) Live() int { return len(m.liveIDs(false)) }

func (m *Manager) liveIDs(onlyRunning bool) (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.live {
		if e.run != nil || !onlyRunning {
			ids = append(ids, id)
		}
	}
	return ids
}

// removeExpired removes expired records, and fails jobs whose questions no client answered and those whose host
// has ended.
func (m *Manager) removeExpired() {
	if there, err := m.store.openExisting(false); err != nil || !there {
		return
	}
	at := time.Now()
	removed, err := m.store.removeExpired(at)
	if err != nil {
		m.o.Log.Warn("cannot remove expired jobs", "error", err)
	}
	for _, id := range removed {
		m.forget(id)
	}
	late, err := m.store.unanswered(at)
	if err != nil {
		m.o.Log.Warn("cannot fail unanswered jobs", "error", err)
	}
	for _, id := range late {
		m.failAs(id, "no answer arrived in time", func(r *row) bool {
			return r.Status == InputRequired && !at.Before(r.Updated.Add(r.TTL))
		})
	}
	if err := m.failOrphans(); err != nil {
		m.o.Log.Warn("cannot fail the jobs of an ended host", "error", err)
	}
	if err := m.continueOrphans(); err != nil {
		m.o.Log.Warn("cannot continue the jobs of an ended host", "error", err)
	}
	m.store.removeHosts()
}

// failOrphans fails the working jobs of ended hosts, except those whose round may run again.
func (m *Manager) failOrphans() error {
	ids, err := m.store.orphans()
	for _, o := range ids {
		m.failAs(o.id, stopText, func(r *row) bool {
			return r.Status == Working && r.host == o.host && !r.Repeatable
		})
	}
	return err
}

// continueOrphans runs the rounds of ended hosts again that may run again. It needs what SetResume sets, so Open
// leaves it to Run.
func (m *Manager) continueOrphans() error {
	m.mu.Lock()
	resume := m.resume
	m.mu.Unlock()
	if resume == nil {
		return nil
	}
	ids, err := m.store.orphans()
	for _, o := range ids {
		if !m.keeps(o.id) {
			continue
		}
		_, e := m.changeJob(o.id, func(r *row) error {
			if r.Status != Working || r.host != o.host || !r.Repeatable || m.ctx.Err() != nil {
				return ErrSettled
			}
			r.host, r.next = m.store.host, true
			r.Round++
			return nil
		})
		if e != nil && e != ErrSettled && e != ErrNotFound {
			err = errors.Join(err, e)
		}
	}
	return err
}

// keeps reports whether this host may go on with a job that it had before it ended. A job with which another host goes
// on is forgotten.
func (m *Manager) keeps(id string) bool {
	if m.o.Others == nil {
		return true
	}
	ours, err := m.o.Others.Keeps(id)
	if err == nil && !ours {
		err = m.Drop(id)
	}
	if err != nil {
		m.o.Log.Warn("a job is not continued yet", "job", id, "err", err)
	}
	return ours && err == nil
}

// dropMoved forgets the jobs that wait for answers and that another host has meanwhile.
func (m *Manager) dropMoved() {
	if m.o.Others == nil {
		return
	}
	waiting, err := m.store.rows(`status = 'input_required' ORDER BY created`)
	if err != nil {
		m.o.Log.Warn("jobs that wait for answers cannot be read", "err", err)
	}
	for _, r := range waiting {
		if r.Repeatable {
			m.keeps(r.ID)
		}
	}
}

// failAs fails a job for which still holds when it is changed.
func (m *Manager) failAs(id, text string, still func(*row) bool) {
	_, err := m.changeJob(id, func(r *row) error {
		if !still(r) {
			return ErrSettled
		}
		r.markEnded(Failed)
		r.Error, r.Note = internalError(text), text
		return nil
	})
	if err != nil && err != ErrSettled && err != ErrNotFound {
		m.o.Log.Warn("a job could not be failed", "error", err)
	}
}

// catchUp reads the jobs that run or are watched in this process again if another host has written to the file.
func (m *Manager) catchUp(seen int64) int64 {
	ids := m.liveIDs(false)
	if len(ids) == 0 {
		return seen
	}
	version, err := m.store.version()
	if err != nil || version == seen {
		return seen
	}
	for _, id := range ids {
		m.refresh(id)
	}
	return version
}

// workers counts goroutines, like a sync.WaitGroup that can be waited for with a deadline and while it grows.
type workers struct {
	mu     sync.Mutex
	n      int
	idle   chan struct{} // closed when n falls to 0; nil while it is 0
	closed bool
}

// Go runs f, unless workers is closed.
func (w *workers) Go(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	if w.n == 0 {
		w.idle = make(chan struct{})
	}
	w.n++
	go func() {
		defer w.done()
		f()
	}()
	return true
}

func (w *workers) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n--; w.n == 0 {
		close(w.idle)
		w.idle = nil
	}
}

// Wait waits until nothing runs.
func (w *workers) Wait(ctx context.Context) error {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *workers) closeToNew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}
