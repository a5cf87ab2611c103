package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

// taskTopic is the topic of requests about the tasks of a node.
const taskTopic = "task"

const (
	taskTime = 5 * time.Second  // another node has to answer
	taskWait = 20 * time.Second // a request waits for a change of a task
)

// clusterTasks implements protocol.Tasks: the tasks of all nodes. The id of a task names the node that made it.
type clusterTasks struct {
	*jobs.Manager
	nodes *clusterNodes

	life    context.Context // a field, because watches of tasks end with the host and not with a request
	end     context.CancelFunc
	running sync.WaitGroup
}

func newClusterTasks(c *clusterNodes, own *jobs.Manager) *clusterTasks {
	t := &clusterTasks{Manager: own, nodes: c}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// taskQuestion is a request about the tasks of a node.
type taskQuestion struct {
	Op      string                     `json:"op"` // get, list, wait, cancel or answer
	Owner   string                     `json:"owner"`
	ID      string                     `json:"id,omitempty"`
	Cursor  string                     `json:"cursor,omitempty"`
	Limit   int                        `json:"limit,omitempty"`
	Answers map[string]json.RawMessage `json:"answers,omitempty"`
	Seen    *taskMark                  `json:"seen,omitempty"` // with wait
}

// taskAnswer is the answer. Of the errors, those that have a meaning to the caller are told apart.
type taskAnswer struct {
	Record   jobs.Record   `json:"record"`
	List     []jobs.Record `json:"list,omitempty"`
	Next     string        `json:"next,omitempty"`
	Absent   bool          `json:"absent,omitempty"`
	Terminal bool          `json:"terminal,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// taskMark is what of a task changes visibly.
type taskMark struct {
	Status  jobs.Status `json:"status"`
	Updated int64       `json:"updated"` // milliseconds
	Round   int64       `json:"round"`
	Note    string      `json:"note,omitempty"`
	Done    float64     `json:"done,omitempty"`
}

func markOf(r *jobs.Record) taskMark {
	return taskMark{r.Status, r.Updated.UnixMilli(), r.Round, r.Note, r.Done}
}

// serveTasks answers other nodes about the tasks of this one.
func (a *App) serveTasks() error {
	t := a.nodes.tasks
	a.closing("tasks of other nodes", func(context.Context) error {
		t.end()
		t.running.Wait()
		return nil
	})
	_, err := a.nodes.Handle(taskTopic, func(ctx context.Context, _ string, raw []byte) ([]byte, error) {
		var q taskQuestion
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		return json.Marshal(t.answerHere(ctx, &q))
	})
	return err
}

// answerHere answers a question about the tasks of this node.
func (t *clusterTasks) answerHere(ctx context.Context, q *taskQuestion) (a taskAnswer) {
	var err error
	switch q.Op {
	case "get":
		a.Record, err = t.Manager.Get(q.Owner, q.ID)
	case "list":
		a.List, a.Next, err = t.Manager.List(q.Owner, q.Cursor, q.Limit)
		for i := range a.List {
			a.List[i] = t.withVerdict(a.List[i])
		}
	case "wait":
		ctx, cancel := context.WithTimeout(ctx, taskWait)
		defer cancel()
		a.Record, err = t.Manager.Wait(ctx, q.Owner, q.ID, func(r jobs.Record) bool {
			return q.Seen == nil || markOf(&r) != *q.Seen
		})
		if errors.Is(err, context.DeadlineExceeded) {
			a.Record, err = t.Manager.Get(q.Owner, q.ID)
		}
	case "cancel":
		a.Record, err = t.Manager.Cancel(q.Owner, q.ID)
	case "answer":
		a.Record, err = t.Manager.Answer(q.Owner, q.ID, q.Answers)
	default:
		err = fmt.Errorf("unknown operation %q", q.Op)
	}
	a.Absent, a.Terminal = errors.Is(err, jobs.ErrNotFound), errors.Is(err, jobs.ErrTerminal)
	if err != nil {
		a.Error = err.Error()
	}
	a.Record.Request, a.Record.Recorded, a.Record.State = nil, nil, nil // they stay where the task runs
	return a
}

// withVerdict returns a record of a list with what its result says of its success, because lists have no results.
func (t *clusterTasks) withVerdict(r jobs.Record) jobs.Record {
	if r.Status != jobs.Completed {
		return r
	}
	r.Result = json.RawMessage(`{}`)
	if full, err := t.Manager.Get(r.Owner, r.ID); err == nil {
		if v, ok := rawjson.Get(full.Result, "isError"); ok && string(v) == "true" {
			r.Result = json.RawMessage(`{"isError":true}`)
		}
	}
	return r
}

// ask sends a question to a node, which has taskTime to answer it, except if it waits for a change.
func (t *clusterTasks) ask(ctx context.Context, node string, q *taskQuestion) (a taskAnswer, err error) {
	if q.Op != "wait" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, taskTime)
		defer cancel()
	}
	raw, err := json.Marshal(q)
	if err == nil {
		raw, err = t.nodes.Request(ctx, node, taskTopic, raw)
	}
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	switch {
	case errors.Is(err, cluster.ErrNotRun), errors.Is(err, cluster.ErrMayHaveRun) && (q.Op == "get" || q.Op == "wait"):
		return a, notHeardError{node}
	case err != nil:
		return a, err
	case a.Absent:
		return a, jobs.ErrNotFound
	case a.Terminal:
		return a, jobs.ErrTerminal
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// askFor is ask with the time limit of a request.
func (t *clusterTasks) askFor(node string, q *taskQuestion) (taskAnswer, error) {
	ctx, cancel := t.briefly()
	defer cancel()
	return t.ask(ctx, node, q)
}

// anywhere runs an operation here or, if the task is on another node, there. A task of a dead node has failed here,
// unless another node goes on with it.
func (t *clusterTasks) anywhere(
	ctx context.Context, q *taskQuestion, here func() (jobs.Record, error),
) (jobs.Record, error) {
	rec, err := here()
	if !errors.Is(err, jobs.ErrNotFound) {
		return rec, err
	}
	_, node, _ := strings.Cut(q.ID, "_")
	known, alive := t.nodes.Known(node)
	if !cluster.ValidID(node) || !known && !t.nodes.Removed(node) {
		return rec, err
	}
	silent := !alive
	if alive && node != t.nodes.ID() {
		a, err := t.ask(ctx, node, q)
		if _, silent = errors.AsType[notHeardError](err); !silent && !errors.Is(err, jobs.ErrNotFound) {
			return a.Record, err
		}
	}
	rec, err = t.byRecord(ctx, q, node, here)
	if silent && errors.Is(err, jobs.ErrNotFound) { // its record may not have been written
		err = notHeardError{node}
	}
	return rec, err
}

// byRecord runs an operation where the record of a job says that it is; node is the one that has made it.
func (t *clusterTasks) byRecord(
	ctx context.Context, q *taskQuestion, node string, here func() (jobs.Record, error),
) (jobs.Record, error) {
	if t.nodes.jobs == nil {
		return here()
	}
	at, revision, err := t.nodes.jobs.find(ctx, q.ID)
	switch {
	case errors.Is(err, cluster.ErrNotFound) && !t.nodes.Alive(node):
		return jobs.Record{}, notHeardError{node}
	case errors.Is(err, cluster.ErrNotFound), err == nil && at.Owner != q.Owner:
		return jobs.Record{}, jobs.ErrNotFound
	case err != nil && !t.nodes.Alive(node):
		return jobs.Record{}, fmt.Errorf("the task is on node %s, which is not heard: %w", node, err)
	case err != nil:
		return jobs.Record{}, err
	case at.Node == t.nodes.ID():
		rec, err := here() // it has just come
		if errors.Is(err, jobs.ErrNotFound) && at.Again != nil {
			return at.jobOf(q.ID), nil // it comes in a moment
		}
		return rec, err
	case t.nodes.Alive(at.Node):
		a, err := t.ask(ctx, at.Node, q)
		_, silent := errors.AsType[notHeardError](err)
		if at.Again != nil && (silent || errors.Is(err, jobs.ErrNotFound)) {
			return at.jobOf(q.ID), nil // it comes in a moment, or goes on elsewhere
		}
		return a.Record, err
	case at.Status.Terminal() && at.Ended != nil:
		return at.ended(q.ID)
	case at.Again != nil && q.Op == "cancel":
		return t.nodes.jobs.cancel(ctx, q.ID, at, revision)
	case at.Again != nil:
		return at.jobOf(q.ID), nil // another node goes on with it soon
	case t.nodes.jobs.lost(ctx, q.ID, &at):
		return here()
	}
	return jobs.Record{}, notHeardError{at.Node}
}

// notHeardError is about a task of a node that is not heard.
type notHeardError struct{ node string }

func (e notHeardError) Error() string {
	return "the task is on node " + e.node + ", which is not heard; if the node has died, the task is lost"
}

// briefly is the time of a request about a task: another node may have to answer, and then the record of the task to be
// read while a leader is elected.
func (t *clusterTasks) briefly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.life, taskTime+nameTime)
}

// Get implements protocol.Tasks.
func (t *clusterTasks) Get(owner, id string) (jobs.Record, error) {
	ctx, cancel := t.briefly()
	defer cancel()
	return t.anywhere(ctx, &taskQuestion{Op: "get", Owner: owner, ID: id}, func() (jobs.Record, error) {
		return t.Manager.Get(owner, id)
	})
}

// Cancel implements protocol.Tasks.
func (t *clusterTasks) Cancel(owner, id string) (jobs.Record, error) {
	ctx, cancel := t.briefly()
	defer cancel()
	return t.anywhere(ctx, &taskQuestion{Op: "cancel", Owner: owner, ID: id}, func() (jobs.Record, error) {
		return t.Manager.Cancel(owner, id)
	})
}

// Answer implements protocol.Tasks.
func (t *clusterTasks) Answer(owner, id string, answers map[string]json.RawMessage) (jobs.Record, error) {
	ctx, cancel := t.briefly()
	defer cancel()
	return t.anywhere(ctx, &taskQuestion{Op: "answer", Owner: owner, ID: id, Answers: answers}, func() (jobs.Record, error) {
		return t.Manager.Answer(owner, id, answers)
	})
}

// List implements protocol.Tasks. A page has up to limit tasks of each node that answers, the newest first.
func (t *clusterTasks) List(owner, cursor string, limit int) (list []jobs.Record, next string, err error) {
	self := t.nodes.ID()
	cursors, err := module.ReadCursor(cursor, self)
	if err != nil {
		return nil, "", err
	}
	rest := map[string]string{}
	if from, more := cursors[self]; more || len(cursors) == 0 {
		var own string
		if list, own, err = t.Manager.List(owner, from, limit); err != nil {
			return nil, "", err
		}
		if own != "" {
			rest[self] = own
		}
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, node := range t.nodes.otherMembers() {
		from, more := cursors[node]
		if !t.nodes.Alive(node) || len(cursors) > 0 && !more {
			continue
		}
		asking.Go(func() {
			a, err := t.askFor(node, &taskQuestion{Op: "list", Owner: owner, Cursor: from, Limit: limit})
			if err != nil {
				t.nodes.log.Warn("the tasks of a node are not listed", "node", node, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if list = append(list, a.List...); a.Next != "" {
				rest[node] = a.Next
			}
		})
	}
	asking.Wait()
	slices.SortStableFunc(list, func(a, b jobs.Record) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.ID, a.ID))
	})
	return list, module.WriteCursor(rest, self), nil
}

// Watch implements protocol.Tasks. While a task of another node is watched, a request waits there for its next change.
func (t *clusterTasks) Watch(owner, id string, f func(jobs.Record)) (stop func(), err error) {
	stop, err = t.Manager.Watch(owner, id, f)
	if !errors.Is(err, jobs.ErrNotFound) {
		return stop, err
	}
	first, err := t.Get(owner, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(t.life)
	t.running.Go(func() {
		defer cancel()
		t.follow(ctx, owner, first, f)
	})
	return cancel, nil
}

// follow calls f with the changes of a task of another node until it has ended. If the node dies the task has failed,
// unless another one goes on with it.
func (t *clusterTasks) follow(ctx context.Context, owner string, last jobs.Record, f func(jobs.Record)) {
	for !last.Status.Terminal() {
		now, err := t.waitOnce(ctx, owner, &last)
		if ctx.Err() != nil {
			return
		}
		_, gone := errors.AsType[notHeardError](err)
		switch {
		case gone || errors.Is(err, jobs.ErrNotFound):
			now = last
			now.Status, now.Error = jobs.Failed, &tool.WireError{Code: -32603, Message: err.Error()}
		case err != nil && !errors.Is(err, jobs.ErrTerminal):
			now = last // it is asked again
		}
		if markOf(&now) != markOf(&last) {
			f(now)
		} else {
			select {
			case <-time.After(followPause):
			case <-ctx.Done():
				return
			}
		}
		last = now
	}
}

// followPause is how long a task of another node is left alone that has not changed: where it runs the request waits
// longer, so that this is the pause while no node has it.
const followPause = time.Second

// waitOnce waits where a task is until it is no longer as last says, or for a while.
func (t *clusterTasks) waitOnce(ctx context.Context, owner string, last *jobs.Record) (jobs.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, taskWait+taskTime)
	defer cancel()
	seen := markOf(last)
	q := &taskQuestion{Op: "wait", Owner: owner, ID: last.ID, Seen: &seen}
	return t.anywhere(ctx, q, func() (jobs.Record, error) {
		a := t.answerHere(ctx, q)
		switch {
		case a.Absent:
			return jobs.Record{}, jobs.ErrNotFound
		case a.Error != "" && !a.Terminal:
			return a.Record, errors.New(a.Error)
		}
		return a.Record, nil
	})
}

// jobsAnywhere are the jobs that the module of jobs shows: it lists those of this node, because it asks the others
// itself, and finds each one where it is.
type jobsAnywhere struct{ *clusterTasks }

// List returns jobs of this node.
func (j jobsAnywhere) List(owner, cursor string, limit int) ([]jobs.Record, string, error) {
	return j.Manager.List(owner, cursor, limit)
}

// Owner returns the owner of a job on any node.
func (j jobsAnywhere) Owner(id string) (string, error) {
	owner, err := j.Manager.Owner(id)
	if !errors.Is(err, jobs.ErrNotFound) || j.nodes.jobs == nil {
		return owner, err
	}
	ctx, cancel := j.briefly()
	defer cancel()
	rec, _, e := j.nodes.jobs.find(ctx, id)
	if e != nil {
		return owner, err
	}
	return rec.Owner, nil
}

// Wait waits for a job on any node.
func (j jobsAnywhere) Wait(
	ctx context.Context, owner, id string, until func(jobs.Record) bool,
) (jobs.Record, error) {
	rec, err := j.Manager.Wait(ctx, owner, id, until)
	if !errors.Is(err, jobs.ErrNotFound) {
		return rec, err
	}
	if rec, err = j.Get(owner, id); err != nil {
		return rec, err
	}
	for !until(rec) && !rec.Status.Terminal() {
		now, err := j.waitOnce(ctx, owner, &rec)
		switch {
		case ctx.Err() != nil:
			return rec, context.Cause(ctx)
		case errors.Is(err, jobs.ErrTerminal): // it has ended meanwhile
			return j.Get(owner, id)
		case err != nil:
			return rec, err
		case markOf(&now) == markOf(&rec):
			select {
			case <-time.After(followPause):
			case <-ctx.Done():
				return rec, context.Cause(ctx)
			}
		}
		rec = now
	}
	return rec, nil
}
