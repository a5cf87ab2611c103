// Package job is the module with which a client that does not support tasks waits
// for jobs.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

type jobModule struct {
	deps  module.Deps
	jobs  Jobs
	rules operator.Func
}

// Jobs are the jobs that the module shows, as a *jobs.Manager has them. In a cluster those of other nodes are found by
// their ids.
type Jobs interface {
	Get(owner, id string) (jobs.Record, error)
	List(owner, cursor string, limit int) (list []jobs.Record, next string, err error)
	Unfinished() ([]jobs.Record, error)
	Owner(id string) (string, error)
	Wait(ctx context.Context, owner, id string, until func(jobs.Record) bool) (jobs.Record, error)
	Cancel(owner, id string) (jobs.Record, error)
	Answer(owner, id string, answers map[string]json.RawMessage) (jobs.Record, error)
}

// New returns what makes the module. rules decides who may list and cancel the jobs
// of all callers; nil means that no caller may.
func New(j Jobs, rules operator.Func) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) { return &jobModule{d, j, rules}, nil }
}

func (f *jobModule) Close(context.Context) error { return nil }

func (f *jobModule) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name: "job_wait", Title: "Wait for a job", Effects: tool.Reads, Task: tool.TaskNever,
			Handle:      "id",
			Description: "Waits for a job and returns its result, or its progress.",
			Help: "A call that takes long returns the id of a job. `job_wait` waits for it up to 35 seconds; " +
				"call it again while the job runs. If the job asks a question, this call asks it.",
		}, f.wait),
		tool.New(tool.Def{
			Name: "job_list", Title: "List jobs", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Lists your jobs, newest first.",
			Help:        "In a cluster a page has the jobs of all nodes, up to 50 of each.",
		}, f.listJobs),
		tool.New(tool.Def{
			Name: "job_cancel", Title: "Cancel a job", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever,
			Handle:      "id",
			Description: "Cancels a job that has not ended.",
		}, f.cancel),
	}}, nil
}

// State describes a job.
type State struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Status  string  `json:"status"`
	Note    string  `json:"note,omitempty"`
	Done    float64 `json:"done,omitempty"`
	Total   float64 `json:"total,omitempty"`
	Created string  `json:"created"`
	Owner   string  `json:"owner,omitempty" doc:"with all"`
	module.OnNode
}

// stateOf returns the state of a job. A job whose tool returned an error has the
// status failed, because its work was not done.
func stateOf(r *jobs.Record) State {
	status := r.Status
	if v, ok := rawjson.Get(r.Result, "isError"); ok && status == jobs.Completed && string(v) == "true" {
		status = jobs.Failed
	}
	return State{
		ID: r.ID, Title: r.Title, Status: string(status), Note: r.Note, Done: r.Done, Total: r.Total,
		Created: r.Created.Format(time.RFC3339),
	}
}

type waitIn struct {
	ID      string `json:"id" doc:"the job" min:"1"`
	Seconds int    `json:"seconds,omitempty" doc:"seconds to wait" default:"35" min:"0" max:"35"`
}

// wait returns the result of a job when it has ended. A question of the job becomes
// a question of this call.
func (f *jobModule) wait(ctx context.Context, c *tool.Call, in waitIn) (tool.Result, error) {
	owner := c.Caller.Owner
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Seconds)*time.Second)
	defer cancel()
	rec, err := f.jobs.Wait(ctx, owner, in.ID, func(r jobs.Record) bool {
		return r.Status.Terminal() || r.Status == jobs.InputRequired
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jobs.ErrTerminal) {
		return tool.Result{}, refusalOf(err)
	}
	switch rec.Status {
	case jobs.Completed:
		return tool.Result{Raw: rec.Result}, nil
	case jobs.Failed:
		if rec.Error != nil {
			return tool.Result{}, rec.Error
		}
		return tool.Result{}, tool.Refuse(tool.CodeFailed, "the job failed")
	case jobs.InputRequired:
		answers, err := c.Peer.Ask(rec.Questions...)
		if err != nil {
			return tool.Result{}, err
		}
		if rec, err = f.jobs.Answer(owner, in.ID, answers); err != nil {
			return tool.Result{}, refusalOf(err)
		}
	}
	return tool.Typed(stateOf(&rec)), nil
}

func refusalOf(err error) error {
	if errors.Is(err, jobs.ErrNotFound) {
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error(), Next: "job_list lists your jobs."}
	}
	return err
}

type listIn struct {
	Cursor string `json:"cursor,omitempty" doc:"next_cursor of the previous page"`
	All    bool   `json:"all,omitempty" doc:"the unfinished jobs of all callers, oldest first; administrators only"`
}

type listOut struct {
	Jobs []State `json:"jobs"`
	Next string  `json:"next_cursor,omitempty"`
	module.Unreached
}

func (f *jobModule) listJobs(ctx context.Context, c *tool.Call, in listIn) (out listOut, err error) {
	list, older := f.listOwn, func(a, b State) int { return strings.Compare(b.Created, a.Created) }
	if in.All {
		list, older = f.listAll, func(a, b State) int { return strings.Compare(a.Created, b.Created) }
	}
	cursors, err := module.ReadCursor(in.Cursor, f.deps.Node)
	if err != nil {
		return out, tool.Refuse(tool.CodeInvalidArguments, "cursor: %v", err)
	}
	out.Jobs = []State{}
	if cursor, more := cursors[f.deps.Node]; more || len(cursors) == 0 {
		if out, err = list(c, cursor); err != nil {
			return out, err
		}
	}
	for i := range out.Jobs {
		out.Jobs[i].Node = f.deps.Node
	}
	next := map[string]string{}
	if out.Next != "" {
		next[f.deps.Node] = out.Next
	}
	out.Unreached.Unreached = module.Gather(ctx, f.deps, c, func(node string, there listOut) {
		out.Jobs = append(out.Jobs, there.Jobs...)
		if its, err := module.ReadCursor(there.Next, node); err == nil {
			maps.Copy(next, its)
		}
	})
	if f.deps.Node != "" {
		slices.SortStableFunc(out.Jobs, older)
	}
	out.Next = module.WriteCursor(next, f.deps.Node)
	return out, nil
}

// listOwn lists the caller's jobs on this node.
func (f *jobModule) listOwn(c *tool.Call, cursor string) (listOut, error) {
	recs, next, err := f.jobs.List(c.Caller.Owner, cursor, 50)
	if err != nil {
		return listOut{}, tool.Refuse(tool.CodeInvalidArguments, "cursor: %v", err)
	}
	out := listOut{Jobs: []State{}, Next: next}
	for i := range recs {
		out.Jobs = append(out.Jobs, stateOf(f.withResult(&recs[i])))
	}
	return out, nil
}

// listAll lists the unfinished jobs of all callers on this node.
func (f *jobModule) listAll(c *tool.Call, _ string) (listOut, error) {
	out := listOut{Jobs: []State{}}
	if err := f.rules.Check(c, "list the jobs of all callers"); err != nil {
		return out, err
	}
	recs, err := f.jobs.Unfinished()
	for i := range recs {
		s := stateOf(&recs[i])
		s.Owner = recs[i].Owner
		out.Jobs = append(out.Jobs, s)
	}
	return out, err
}

// withResult returns a completed job with its result, which lists do not have.
func (f *jobModule) withResult(r *jobs.Record) *jobs.Record {
	if r.Status != jobs.Completed {
		return r
	}
	if full, err := f.jobs.Get(r.Owner, r.ID); err == nil {
		return &full
	}
	return r // it was removed since
}

type cancelIn struct {
	ID string `json:"id" doc:"the job" min:"1"`
}

func (f *jobModule) cancel(_ context.Context, c *tool.Call, in cancelIn) (State, error) {
	owner := c.Caller.Owner
	if f.rules.By(c.Caller) {
		var err error
		if owner, err = f.jobs.Owner(in.ID); err != nil {
			return State{}, refusalOf(err)
		}
	}
	rec, err := f.jobs.Cancel(owner, in.ID)
	if err != nil && !errors.Is(err, jobs.ErrTerminal) {
		return State{}, refusalOf(err)
	}
	return stateOf(&rec), nil
}
