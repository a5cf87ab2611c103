package jobs

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// live is a job that runs here or is watched here. Guarded by Jobs.mu.
type live struct {
	row      row
	run      *Running // nil when no round runs here
	saved    time.Time
	watchers map[*watcher]struct{}
}

// startRunning takes in a job whose round is about to run here.
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

// running gives a job whose round runs here, with its newest remarks.
func (m *Manager) running(id string) (Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live[id]; e != nil && e.run != nil {
		return e.row.Record, true
	}
	return Record{}, false
}

// overlay puts remarks that are not on disk yet onto a stored row.
func (m *Manager) overlay(r *row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.live[r.ID]; e != nil && e.run != nil && r.Status == Working && r.Round == e.row.Round {
		r.Note, r.Done, r.Total, r.Updated = e.row.Note, e.row.Done, e.row.Total, e.row.Updated
	}
}

// updateLive changes a running job in memory, and on disk now and then.
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
	}
}

// publish shows a stored change to those who watch, ends the round it ends and
// begins the one it begins. The store calls it in the order of the changes; a
// state that was read rather than changed may come late, and is dropped then.
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
		m.crew.Go(func() { m.round(run, r.Record, resume) })
	} else {
		e.row = r
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

func causeOf(s Status) error {
	if s == Cancelled {
		return ErrCancelled
	}
	return ErrSettled
}

// removeLive forgets a job that neither runs nor is watched; mu is held.
func (m *Manager) removeLive(id string) {
	if e := m.live[id]; e != nil && e.run == nil && len(e.watchers) == 0 {
		delete(m.live, id)
	}
}

// round runs a further round to its end, whatever it does.
func (m *Manager) round(run *Running, r Record, resume Resume) {
	defer func() {
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
			m.o.Log.Error("a job's round was not settled", "job", run.id)
		}
	}()
	resume(run.ctx, r, run)
}

// refresh brings in what another host has done to a job.
func (m *Manager) refresh(id string) {
	r, err := m.store.readRow(id)
	if err != nil {
		m.forget(id)
		return
	}
	m.mu.Lock()
	e := m.live[id]
	// As long as our own round runs, memory is ahead of the disk.
	ours := e != nil && e.run != nil && r.Status == Working && r.Round == e.run.round
	m.mu.Unlock()
	if !ours {
		m.publish(r)
	}
}

// forget ends all that hangs on a job that is gone.
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
