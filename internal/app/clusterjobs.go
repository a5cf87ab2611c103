package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/rawjson"
)

// jobRecord is what the other nodes know of a job, so that they can say what is lost with its node.
type jobRecord struct {
	Node    string        `json:"node"`
	Owner   string        `json:"owner"`
	Title   string        `json:"title,omitempty"`
	Status  jobs.Status   `json:"status"`
	Created time.Time     `json:"created"`
	Updated time.Time     `json:"updated"`
	TTL     time.Duration `json:"ttl"`
	Poll    time.Duration `json:"poll"`
}

// jobRecords is how long the record of a job is kept: as long as a job.
const jobRecords = 24 * time.Hour

// maxJobsUnwritten bounds the records that are not written yet; what comes while there are so many is not written.
const maxJobsUnwritten = 10_000

// jobNotes writes the records of this node's jobs, a moment after they change.
type jobNotes struct {
	c      *clusterNodes
	bucket *cluster.Bucket

	mu      sync.Mutex
	pending map[string]jobRecord
	wake    chan struct{}
}

// openJobNotes makes the cluster know the jobs of this node; nil without a cluster.
func (a *App) openJobNotes(ctx context.Context) (*jobNotes, error) {
	if a.nodes == nil || a.opts.Private {
		return nil, nil
	}
	b, err := a.nodes.Bucket(ctx, "jobs", cluster.BucketOptions{TTL: jobRecords})
	if err != nil {
		return nil, err
	}
	n := &jobNotes{c: a.nodes, bucket: b, pending: map[string]jobRecord{}, wake: make(chan struct{}, 1)}
	a.addPart("jobs of the cluster", n.run)
	return n, nil
}

// changed notes a job; it does not block.
func (n *jobNotes) changed(r jobs.Record) {
	rec := jobRecord{
		Node: n.c.ID(), Owner: r.Owner, Title: r.Title, Status: r.Status, Created: r.Created, Updated: r.Updated,
		TTL: r.TTL, Poll: r.Poll,
	}
	n.mu.Lock()
	if len(n.pending) < maxJobsUnwritten {
		n.pending[r.ID] = rec
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *jobNotes) run(ctx context.Context) error {
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return nil
		}
		for id, rec := range n.take() {
			if err := n.write(ctx, id, rec); err != nil && ctx.Err() == nil {
				n.c.log.Warn("other nodes do not know of a job, which is told as gone if this node dies", "job", id, "err", err)
			}
		}
	}
}

func (n *jobNotes) take() map[string]jobRecord {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.pending
	n.pending = map[string]jobRecord{}
	return all
}

func (n *jobNotes) write(ctx context.Context, id string, rec jobRecord) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	_, err = n.bucket.Put(ctx, id, raw)
	return err
}

// lost makes a job of a node that has died one of this node, which has failed and says what is lost. It reports false
// if no node knows of the job, or most nodes do not agree that its node is dead.
func (n *jobNotes) lost(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	r, err := n.bucket.Get(ctx, id)
	var rec jobRecord
	if err == nil {
		err = json.Unmarshal(r.Value, &rec)
	}
	if err != nil {
		if !errors.Is(err, cluster.ErrNotFound) {
			n.c.log.Debug("the record of a job is not known", "job", id, "err", err)
		}
		return false
	}
	if dead, _ := n.c.Dead(ctx, rec.Node); !dead && !n.c.Removed(rec.Node) {
		return false
	}
	text := fmt.Sprintf("lost: node %s died while this job ran: %s, since %s; it may have done part of its work", rec.Node,
		rec.Title, rec.Created.Format(time.RFC3339))
	if rec.Status.Terminal() {
		text = fmt.Sprintf("lost: node %s has died with the result of this job: %s, which was %s at %s", rec.Node,
			rec.Title, rec.Status, rec.Updated.Format(time.RFC3339))
	}
	err = n.c.app.jobs.AddLost(jobs.Record{
		ID: id, Owner: rec.Owner, Title: rec.Title, Created: rec.Created, TTL: rec.TTL, Poll: rec.Poll,
	}, text)
	if err != nil {
		n.c.log.Warn("a job that is lost was not recorded", "job", id, "err", err)
	}
	return err == nil
}

// lostCall reports whether a call about a job of a node that is not heard can be answered here, because the job is lost.
func (n *jobNotes) lostCall(ctx context.Context, r *bus.Request) bool {
	if n == nil || r.Module != "job" {
		return false
	}
	raw, _ := rawjson.Get(r.Args, "id")
	id, ok := rawjson.String(raw)
	return ok && n.lost(ctx, id)
}
