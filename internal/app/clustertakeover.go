package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/jobs"
)

// Share implements jobs.Others: it stores the record of a job of this node that may run again, unless another node has
// the job.
func (n *jobNotes) Share(r jobs.Record) error { return n.share(r, false) }

// share is Share; late means that a newer state may have been written since r was.
func (n *jobNotes) share(r jobs.Record, late bool) error {
	rec := n.recordOfJob(&r)
	if rec.Again != nil && len(r.Request)+len(r.State) > maxJobAgain {
		rec.Again = nil
	}
	if r.Status.Terminal() {
		rec.Again = nil
		end, err := json.Marshal(jobEnd{r.Result, r.Error})
		if err != nil {
			return err
		}
		if len(end) <= maxJobEnd {
			rec.Ended = end
		}
	}
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	n.mu.Lock()
	s := n.shared[r.ID]
	if s == nil {
		s = &sharedJob{}
		n.shared[r.ID] = s
	}
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), shareJobTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended: // it was written when it ended, and this is what the node itself has stored
		if r.Status.Terminal() {
			n.forget(r.ID)
		}
		return nil
	case late && r.Updated.Before(s.updated):
		return nil
	}
	s.updated = r.Updated
	if err = n.swap(ctx, r.ID, s, raw); errors.Is(err, jobs.ErrMoved) {
		n.forget(r.ID)
	}
	s.ended = err == nil && r.Status.Terminal()
	return err
}

func (n *jobNotes) forget(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.shared, id)
}

// swap writes the record of a job as the next one after that which this node has written. s.mu must be held.
func (n *jobNotes) swap(ctx context.Context, id string, s *sharedJob, raw []byte) (err error) {
	if bytes.Equal(raw, s.written) {
		return nil
	}
	for {
		var revision uint64
		if s.revision == 0 {
			revision, err = n.bucket.Create(ctx, id, raw)
		} else {
			revision, err = n.bucket.Update(ctx, id, raw, s.revision)
		}
		if err == nil {
			s.revision, s.written = revision, raw
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		now, e := n.bucket.Get(ctx, id)
		var rec jobRecord
		switch {
		case errors.Is(e, cluster.ErrNotFound) && s.revision > 0:
			return jobs.ErrMoved // another node has ended it, and its record has expired since
		case errors.Is(e, cluster.ErrNotFound):
			continue
		case e != nil:
			return errors.Join(err, e)
		case bytes.Equal(now.Value, raw): // the write has run although its answer was lost
			s.revision, s.written = now.Revision, raw
			return nil
		case json.Unmarshal(now.Value, &rec) != nil || rec.Node != n.c.ID() || rec.Status.Terminal():
			return jobs.ErrMoved
		}
		s.revision = now.Revision
	}
}

// Keeps implements jobs.Others for a node that was away. The record is written again, so that a node which is about to
// go on with the job finds another revision.
func (n *jobNotes) Keeps(id string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), shareJobTime)
	defer cancel()
	for {
		rec, revision, err := n.find(ctx, id)
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			return true, nil // no other node knows of it
		case err != nil:
			return false, err
		case rec.Node != n.c.ID() || rec.Status.Terminal():
			return false, nil
		}
		taken, err := n.claim(ctx, id, &rec, revision)
		if taken || err != nil {
			return taken, err
		}
	}
}

// claim makes this node the one that has a job, unless its record has changed.
func (n *jobNotes) claim(ctx context.Context, id string, rec *jobRecord, revision uint64) (bool, error) {
	next := *rec
	next.Node, next.Updated = n.c.ID(), time.Now().UTC()
	if rec.Again != nil && rec.Status == jobs.Working {
		again := *rec.Again
		again.Round++
		next.Again = &again
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return false, err
	}
	now, err := n.bucket.Update(ctx, id, raw, revision)
	if errors.Is(err, cluster.ErrMayHaveRun) {
		r, e := n.bucket.Get(ctx, id)
		if e != nil {
			return false, errors.Join(err, e)
		}
		if bytes.Equal(r.Value, raw) {
			now, err = r.Revision, nil
		}
	}
	switch {
	case errors.Is(err, cluster.ErrConflict), errors.Is(err, cluster.ErrMayHaveRun):
		return false, nil
	case err != nil:
		return false, err
	}
	n.mu.Lock()
	n.shared[id] = &sharedJob{revision: now, written: raw}
	n.mu.Unlock()
	*rec = next
	return true, nil
}

// takeOver goes on with the jobs of nodes that have died, until ctx is done.
func (n *jobNotes) takeOver(ctx context.Context) {
	done := map[string]bool{} // nodes of which no job is left, while they are dead
	n.c.every(ctx, n.c.lease/2, func() {
		if n.c.Draining() || n.c.serves() != nil {
			return
		}
		for _, p := range n.c.Nodes()[1:] {
			switch {
			case p.Alive:
				delete(done, p.ID)
			case p.Member && !done[p.ID]:
				if dead, _ := n.c.Dead(ctx, p.ID); dead {
					done[p.ID] = n.takeJobsOf(ctx, p.ID)
				}
			}
		}
		if !done[n.c.ID()] { // what this node took before it died itself, and did not begin
			done[n.c.ID()] = n.takeJobsOf(ctx, n.c.ID())
		}
	})
}

// takeJobsOf goes on with the jobs of a node. It reports whether it has seen them all.
func (n *jobNotes) takeJobsOf(ctx context.Context, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	all, err := n.bucket.List(ctx)
	if err != nil {
		n.c.log.Warn("jobs of a node that has died are not continued yet", "node", node, "err", err)
		return false
	}
	whole := true
	for _, r := range all {
		var rec jobRecord
		if json.Unmarshal(r.Value, &rec) != nil || rec.Node != node || rec.Again == nil || rec.Status.Terminal() {
			continue
		}
		if _, err := n.c.app.jobs.Owner(r.Key); node == n.c.ID() && err == nil {
			continue
		}
		job := rec.jobOf(r.Key)
		if !n.c.app.engine.CanResume(ctx, job, n.c.app.host.CanRestart) {
			whole = n.leaveLost(ctx, r, rec) && whole
			continue
		}
		taken, err := n.claim(ctx, r.Key, &rec, r.Revision)
		if taken {
			err = n.c.app.jobs.Adopt(rec.jobOf(r.Key))
		}
		if err != nil {
			n.c.log.Warn("a job of a node that has died is not continued", "job", r.Key, "node", node, "err", err)
			whole = false
		} else if taken {
			n.c.log.Info("this node goes on with a job of a node that has died", "job", r.Key, "title", rec.Title,
				"node", node)
		}
	}
	return whole
}

// cancel ends a job with which no node goes on yet.
func (n *jobNotes) cancel(ctx context.Context, id string, rec jobRecord, revision uint64) (jobs.Record, error) {
	rec.Again, rec.Status, rec.Ended = nil, jobs.Cancelled, json.RawMessage(`{}`)
	raw, err := json.Marshal(rec)
	if err == nil {
		_, err = n.bucket.Update(ctx, id, raw, revision)
	}
	if err != nil {
		return jobs.Record{}, fmt.Errorf("job %s is about to go on on another node; try again: %w", id, err)
	}
	return rec.ended(id)
}

// leaveTime is how long a node that lacks the tool of a job leaves it to the others.
const leaveTime = 30 * time.Second

// leaveLost leaves a job to the nodes that have its tool. If none has gone on with it for a while it is lost. It
// reports whether that is settled.
func (n *jobNotes) leaveLost(ctx context.Context, r cluster.Record, rec jobRecord) bool {
	if time.Since(r.At) < leaveTime { // by the clock of another node: a job may be lost sooner or later than this
		return false
	}
	rec.Again = nil
	raw, err := json.Marshal(rec)
	if err == nil {
		_, err = n.bucket.Update(ctx, r.Key, raw, r.Revision)
	}
	return err == nil
}

// compareJobs forgets the jobs with which other nodes went on while this one was cut off.
func (n *jobNotes) compareJobs(ctx context.Context) error {
	n.mu.Lock()
	ids := make([]string, 0, len(n.shared))
	for id := range n.shared {
		ids = append(ids, id)
	}
	n.mu.Unlock()
	for _, id := range ids {
		rec, _, err := n.find(ctx, id)
		switch {
		case errors.Is(err, cluster.ErrNotFound):
		case err != nil:
			return err
		case rec.Node != n.c.ID():
			n.forget(id)
			if err := n.c.app.jobs.Drop(id); err != nil {
				return err
			}
		}
	}
	return nil
}
