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
	"gatehouse/tool"
)

// jobRecord is what the other nodes know of a job: enough to say what is lost with its node, and of one that may run
// again enough to go on with it.
type jobRecord struct {
	Node    string        `json:"node"`
	Owner   string        `json:"owner"`
	Title   string        `json:"title,omitempty"`
	Status  jobs.Status   `json:"status"`
	Created time.Time     `json:"created"`
	Updated time.Time     `json:"updated"`
	TTL     time.Duration `json:"ttl"`
	Poll    time.Duration `json:"poll"`

	Again *jobAgain       `json:"again,omitempty"` // of a job that may run again and has not ended
	Ended json.RawMessage `json:"ended,omitempty"` // the result or the error of one that has, if it is small
}

// jobAgain is what another node needs to go on with a job.
type jobAgain struct {
	Request   json.RawMessage            `json:"request"`
	Recorded  map[string]json.RawMessage `json:"recorded,omitempty"`
	State     []byte                     `json:"state,omitempty"`
	Questions []tool.Question            `json:"questions,omitempty"`
	Round     int64                      `json:"round"`
	Note      string                     `json:"note,omitempty"`
	Done      float64                    `json:"done,omitempty"`
	Total     float64                    `json:"total,omitempty"`
}

// jobEnd is the end of a job that could run again.
type jobEnd struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *tool.WireError `json:"error,omitempty"`
}

const (
	// jobRecords is how long the record of a job is kept: as long as a job.
	jobRecords = 24 * time.Hour
	// maxJobsUnwritten bounds the records that are not written yet; what comes while there are so many is not written.
	maxJobsUnwritten = 10_000
	// maxJobAgain bounds what is stored to go on with a job, and maxJobEnd what is of its end. A job that needs more is
	// lost with its node.
	maxJobAgain = 1 << 20
	maxJobEnd   = 64 << 10
	// shareJobTime is how long a node waits for most nodes to store what another one needs to go on with a job.
	shareJobTime = 10 * time.Second
)

// recordOfJob returns what other nodes get to know of a job of this node.
func (n *jobNotes) recordOfJob(r *jobs.Record) jobRecord {
	rec := jobRecord{
		Node: n.c.ID(), Owner: r.Owner, Title: r.Title, Status: r.Status, Created: r.Created, Updated: r.Updated,
		TTL: r.TTL, Poll: r.Poll,
	}
	if r.Repeatable {
		rec.Again = &jobAgain{
			Request: r.Request, Recorded: r.Recorded, State: r.State, Questions: r.Questions, Round: r.Round,
			Note: r.Note, Done: r.Done, Total: r.Total,
		}
	}
	return rec
}

// jobOf returns the job of a record, as a node goes on with it.
func (r *jobRecord) jobOf(id string) jobs.Record {
	job := jobs.Record{
		ID: id, Owner: r.Owner, Title: r.Title, Status: r.Status, Created: r.Created, Updated: r.Updated, TTL: r.TTL,
		Poll: r.Poll,
	}
	if a := r.Again; a != nil {
		job.Request, job.Recorded, job.State, job.Questions = a.Request, a.Recorded, a.State, a.Questions
		job.Round, job.Note, job.Done, job.Total, job.Repeatable = a.Round, a.Note, a.Done, a.Total, true
	}
	return job
}

// ended returns the job of a record that has its end.
func (r *jobRecord) ended(id string) (jobs.Record, error) {
	job := r.jobOf(id)
	var end jobEnd
	err := json.Unmarshal(r.Ended, &end)
	job.Result, job.Error = end.Result, end.Error
	return job, err
}

// jobNotes writes the records of this node's jobs: a moment after they change, those of jobs that may run again before
// it goes on. It goes on with jobs of nodes that have died.
type jobNotes struct {
	c      *clusterNodes
	bucket *cluster.Bucket

	mu      sync.Mutex
	pending map[string]jobs.Record
	shared  map[string]*sharedJob // jobs of this node that may run again
	wake    chan struct{}
}

// sharedJob is the record of a job that may run again. Nodes change such a record by compare-and-set, so that one of
// them has the job.
type sharedJob struct {
	mu       sync.Mutex
	revision uint64 // 0 before it is written
	written  []byte
	updated  time.Time
	ended    bool
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
	n := &jobNotes{
		c: a.nodes, bucket: b, pending: map[string]jobs.Record{}, shared: map[string]*sharedJob{},
		wake: make(chan struct{}, 1),
	}
	a.addPart("jobs of the cluster", n.run)
	return n, nil
}

// changed notes a job; it does not block.
func (n *jobNotes) changed(r jobs.Record) {
	n.mu.Lock()
	if len(n.pending) < maxJobsUnwritten {
		n.pending[r.ID] = r
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *jobNotes) run(ctx context.Context) error {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { n.takeOver(ctx) })
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return nil
		}
		for id, r := range n.take() {
			if err := n.write(ctx, r); err != nil && ctx.Err() == nil {
				n.c.log.Warn("other nodes do not know of a job, which is told as gone if this node dies", "job", id, "err", err)
			}
		}
	}
}

func (n *jobNotes) take() map[string]jobs.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.pending
	n.pending = map[string]jobs.Record{}
	return all
}

func (n *jobNotes) write(ctx context.Context, r jobs.Record) error {
	n.mu.Lock()
	s := n.shared[r.ID]
	n.mu.Unlock()
	if s != nil || r.Repeatable {
		err := n.share(r, true)
		if errors.Is(err, jobs.ErrMoved) {
			err = n.c.app.jobs.Drop(r.ID)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	raw, err := json.Marshal(n.recordOfJob(&r))
	if err != nil {
		return err
	}
	_, err = n.bucket.Put(ctx, r.ID, raw)
	return err
}

// find returns the record of a job.
func (n *jobNotes) find(ctx context.Context, id string) (rec jobRecord, revision uint64, err error) {
	r, err := n.bucket.Get(ctx, id)
	if err == nil {
		err = json.Unmarshal(r.Value, &rec)
	}
	return rec, r.Revision, err
}

// lost makes a job of a node that has died one of this node, which has failed and says what is lost. It reports false
// if no node knows of the job, or most nodes do not agree that its node is dead.
func (n *jobNotes) lost(ctx context.Context, id string, rec *jobRecord) bool {
	if dead, _ := n.c.Dead(ctx, rec.Node); !dead && !n.c.Removed(rec.Node) {
		return false
	}
	text := fmt.Sprintf("lost: node %s died while this job ran: %s, since %s; it may have done part of its work", rec.Node,
		rec.Title, rec.Created.Format(time.RFC3339))
	if rec.Status.Terminal() {
		text = fmt.Sprintf("lost: node %s has died with the result of this job: %s, which was %s at %s", rec.Node,
			rec.Title, rec.Status, rec.Updated.Format(time.RFC3339))
	}
	err := n.c.app.jobs.AddLost(rec.jobOf(id), text)
	if err != nil {
		n.c.log.Warn("a job that is lost was not recorded", "job", id, "err", err)
	}
	return err == nil
}

// answers reports whether this node can answer what is asked about a job whose node is not heard: it is lost, it has
// ended and its end is known, or a node goes on with it.
func (n *jobNotes) answers(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	rec, _, err := n.find(ctx, id)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return false
	case err != nil:
		n.c.log.Debug("the record of a job is not known", "job", id, "err", err)
		return false
	}
	return rec.Again != nil || rec.Ended != nil || n.c.Alive(rec.Node) || n.lost(ctx, id, &rec)
}

// lostCall reports whether a call about a job of a node that is not heard can be answered here.
func (n *jobNotes) lostCall(ctx context.Context, r *bus.Request) bool {
	if n == nil || r.Module != "job" {
		return false
	}
	raw, _ := rawjson.Get(r.Args, "id")
	id, ok := rawjson.String(raw)
	return ok && n.answers(ctx, id)
}
