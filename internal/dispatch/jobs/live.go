package jobs

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// live is a job that runs in this process or is watched in it. It is guarded by Manager.mu.
type live struct {
	row      row
	run      *Running // nil when no round runs here
	saved    time.Time
	unstored bool // the job has failed, and that is in memory only; storeFailures stores it
	watchers map[*watcher]struct{}
}

// startRunning adds a job whose round is about to run in this process.
func (m *Manager) startRunning(r row) *Running {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.startRunningLocked(r)
}

func (m *Manager) startRunningLocked(r row) *Running {
	run := &Running{j: m, id: r.ID, round: r.Round}
	run.ctx, run.cancel = context.WithCancelCause(m.ctx)
	e := m.live[r.ID]
	if e == nil {
		e = &live{watchers: map[*watcher]struct{}{}}
		m.live[r.ID] = e
	}
	e.row, e.run, e.saved = r, run, time.Now()
	return run
}

// running returns a job whose newest state is in this process: its round runs here, or its end could not be stored.
func (m *Manager) running(id string) (Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live[id]; e != nil && (e.run != nil || e.unstored) {
		return e.row.Record, true
	}
	return Record{}, false
}

// overlay adds what is not on disk yet to a stored row: a note and progress, or the failure of the job.
func (m *Manager) overlay(r *row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.live[r.ID]
	if e != nil && e.unstored && r.Status == Working && r.Round == e.row.Round {
		r.markEnded(e.row.Status)
		r.Error, r.Note, r.Updated = e.row.Error, e.row.Note, e.row.Updated
		return
	}
	if e != nil && e.run != nil && r.Status == Working && r.Round == e.row.Round {
		r.Note, r.Done, r.Total, r.Updated = e.row.Note, e.row.Done, e.row.Total, e.row.Updated
	}
}

// updateLive changes a running job in memory, and on disk at intervals.
func (m *Manager) updateLive(run *Running, f func(*row)) {
	m.mu.Lock()
	e := m.live[run.id]
	if e == nil || e.run != run {
		m.mu.Unlock()
		return
	}
	f(&e.row)
	e.row.Updated = now()
	e.notifyWatchers()
	r, due := e.row, time.Since(e.saved) >= saveEvery
	if due {
		e.saved = time.Now()
	}
	m.mu.Unlock()
	if !due {
		return
	}
	if ours, err := m.store.updateNote(r); err != nil {
		m.o.Log.Warn("a job's progress was not stored", "error", err)
	} else if !ours {
		m.refresh(run.id) // another host ended it
	} else if r.Repeatable {
		m.changed(r)
	}
}

// publish sends a stored change to the watchers, ends the round that it ends and begins the round that it begins.
// The store calls it in the order of the changes; a state that was read rather than changed may arrive late, and
// is then dropped.
func (m *Manager) publish(r row) {
	m.mu.Lock()
	e := m.live[r.ID]
	if e == nil && !r.next || e != nil && r.rev <= e.row.rev {
		m.mu.Unlock()
		return
	}
	var over *Running
	if r.next {
		run, resume := m.startRunningLocked(r), m.resume
		e = m.live[r.ID]
		m.workers.Go(func() { m.round(run, r.Record, resume) })
	} else {
		known := e.unstored // the watchers know that it has ended
		e.row, e.unstored = r, false
		if known {
			m.removeLive(r.ID)
			m.mu.Unlock()
			return
		}
		if e.run != nil && (r.Status != Working || r.Round != e.run.round) {
			over, e.run = e.run, nil
		}
	}
	e.notifyWatchers()
	m.removeLive(r.ID)
	m.mu.Unlock()
	if over != nil {
		over.cancel(causeOf(r.Status))
	}
}

// failInMemory ends a job whose end cannot be stored: fail changes its record in memory, for this host's callers.
// Other hosts see a working job, until storeFailures succeeds or this host ends.
func (m *Manager) failInMemory(run *Running, fail func(*row)) {
	m.mu.Lock()
	e := m.live[run.id]
	if e == nil || e.run != run {
		m.mu.Unlock()
		return
	}
	fail(&e.row)
	e.row.Updated = now()
	e.run, e.unstored = nil, true
	e.notifyWatchers()
	m.mu.Unlock()
	run.cancel(ErrSettled)
	m.o.Log.Error("a job failed because its outcome cannot be stored", "job", run.id, "err", e.row.Note)
}

// unstored returns a job whose failure is in memory only.
func (m *Manager) unstored(id string) (row, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live[id]; e != nil && e.unstored {
		return e.row, true
	}
	return row{}, false
}

// storeFailures stores the failures that are in memory only.
func (m *Manager) storeFailures() {
	m.mu.Lock()
	var ids []string
	for id, e := range m.live {
		if e.unstored {
			ids = append(ids, id)
		}
	}
	m.mu.Unlock()
	for _, id := range ids {
		_, err := m.changeJob(id, func(r *row) error { return nil }) // overlay makes the change
		if errors.Is(err, ErrNotFound) {
			m.forget(id)
		} else if err != nil {
			return // the next ones would fail as well
		}
	}
}

func causeOf(s Status) error {
	if s == Cancelled {
		return ErrCancelled
	}
	return ErrSettled
}

// removeLive removes a job that neither runs nor is watched. mu must be held.
func (m *Manager) removeLive(id string) {
	if e := m.live[id]; e != nil && e.run == nil && !e.unstored && len(e.watchers) == 0 {
		delete(m.live, id)
	}
}

// round runs a further round and ends it even if resume does not.
func (m *Manager) round(run *Running, r Record, resume Resume) {
	defer func() {
		if m.ctx.Err() != nil && m.survives(run.Record()) {
			return // the next host runs it again
		}
		end := "the round ended without an outcome"
		if p := recover(); p != nil {
			end = "internal error"
			m.o.Log.Error(
				"a job's round panicked",
				"job",
				run.id,
				"panic",
				fmt.Sprint(p),
				"stack",
				string(debug.Stack()),
			)
		}
		if err := run.Fail(internalError(end)); err == nil {
			m.o.Log.Error("a job's round was not ended", "job", run.id)
		}
	}()
	resume(run.ctx, r, run)
}

// refresh applies what another host has done to a job.
func (m *Manager) refresh(id string) {
	r, err := m.store.readRow(id)
	if errors.Is(err, ErrNotFound) {
		m.forget(id)
	}
	if err != nil {
		return
	}
	m.mu.Lock()
	e := m.live[id]
	// As long as a round runs in this process, the state in memory is newer than the one on disk.
	ours := e != nil && e.run != nil && r.Status == Working && r.Round == e.run.round
	m.mu.Unlock()
	if !ours {
		m.publish(r)
	}
}

// forget ends everything that belongs to a removed job.
func (m *Manager) forget(id string) {
	m.mu.Lock()
	e := m.live[id]
	delete(m.live, id)
	m.mu.Unlock()
	if e == nil {
		return
	}
	if e.run != nil {
		e.run.cancel(ErrSettled)
	}
	for w := range e.watchers {
		w.dropOldest()
	}
}
