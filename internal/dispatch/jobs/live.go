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

// begin takes in a job whose round is about to run here.
func (j *Jobs) begin(r row) *Running {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.beginLocked(r)
}

func (j *Jobs) beginLocked(r row) *Running {
	run := &Running{j: j, id: r.ID, round: r.Round}
	run.ctx, run.cancel = context.WithCancelCause(j.ctx)
	e := j.live[r.ID]
	if e == nil {
		e = &live{watchers: map[*watcher]struct{}{}}
		j.live[r.ID] = e
	}
	e.row, e.run, e.saved = r, run, time.Now()
	return run
}

// running gives a job whose round runs here, with its newest remarks.
func (j *Jobs) running(id string) (Record, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.live[id]; e != nil && e.run != nil {
		return e.row.Record, true
	}
	return Record{}, false
}

// overlay puts remarks that are not on disk yet onto a stored row.
func (j *Jobs) overlay(r *row) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.live[r.ID]; e != nil && e.run != nil && r.Status == Working && r.Round == e.row.Round {
		r.Note, r.Done, r.Total, r.Updated = e.row.Note, e.row.Done, e.row.Total, e.row.Updated
	}
}

// remark changes a running job in memory, and on disk now and then.
func (j *Jobs) remark(run *Running, f func(*row)) {
	j.mu.Lock()
	e := j.live[run.id]
	if e == nil || e.run != run {
		j.mu.Unlock()
		return
	}
	f(&e.row)
	e.row.Updated = now()
	e.tell()
	r, due := e.row, time.Since(e.saved) >= saveEvery
	if due {
		e.saved = time.Now()
	}
	j.mu.Unlock()
	if !due {
		return
	}
	if ours, err := j.store.remark(r); err != nil {
		j.o.Log.Warn("a job's progress was not stored", "error", err)
	} else if !ours {
		j.refresh(run.id) // another host ended it
	}
}

// publish shows a stored change to those who watch, ends the round it ends and
// begins the one it begins. The store calls it in the order of the changes; a
// state that was read rather than changed may come late, and is dropped then.
func (j *Jobs) publish(r row) {
	j.mu.Lock()
	e := j.live[r.ID]
	if e == nil && !r.next || e != nil && r.rev <= e.row.rev {
		j.mu.Unlock()
		return
	}
	var over *Running
	if r.next {
		run, resume := j.beginLocked(r), j.resume
		e = j.live[r.ID]
		j.crew.Go(func() { j.round(run, r.Record, resume) })
	} else {
		e.row = r
		if e.run != nil && (r.Status != Working || r.Round != e.run.round) {
			over, e.run = e.run, nil
		}
	}
	e.tell()
	j.tidy(r.ID)
	j.mu.Unlock()
	if over != nil {
		over.cancel(why(r.Status))
	}
}

func why(s Status) error {
	if s == Cancelled {
		return ErrCancelled
	}
	return ErrSettled
}

// tidy forgets a job that neither runs nor is watched; mu is held.
func (j *Jobs) tidy(id string) {
	if e := j.live[id]; e != nil && e.run == nil && len(e.watchers) == 0 {
		delete(j.live, id)
	}
}

// round runs a further round to its end, whatever it does.
func (j *Jobs) round(run *Running, r Record, resume Resume) {
	defer func() {
		end := "the round ended without an outcome"
		if p := recover(); p != nil {
			end = "internal error"
			j.o.Log.Error(
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
			j.o.Log.Error("a job's round was not settled", "job", run.id)
		}
	}()
	resume(run.ctx, r, run)
}

// refresh brings in what another host has done to a job.
func (j *Jobs) refresh(id string) {
	r, err := j.store.get(id)
	if err != nil {
		j.forget(id)
		return
	}
	j.mu.Lock()
	e := j.live[id]
	// As long as our own round runs, memory is ahead of the disk.
	ours := e != nil && e.run != nil && r.Status == Working && r.Round == e.run.round
	j.mu.Unlock()
	if !ours {
		j.publish(r)
	}
}

// forget ends all that hangs on a job that is gone.
func (j *Jobs) forget(id string) {
	j.mu.Lock()
	e := j.live[id]
	delete(j.live, id)
	j.mu.Unlock()
	if e == nil {
		return
	}
	if e.run != nil {
		e.run.cancel(ErrSettled)
	}
	for w := range e.watchers {
		w.lose()
	}
}
