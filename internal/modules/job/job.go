// Package job is the module with which a client that knows no tasks follows
// what has become a job.
package job

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/jobs"
	"gatehouse/internal/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

type follower struct{ jobs *jobs.Jobs }

// New returns what makes the module.
func New(j *jobs.Jobs) module.New {
	return func(context.Context, module.Deps) (module.Module, error) { return &follower{j}, nil }
}

func (f *follower) Close(context.Context) error { return nil }

func (f *follower) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name: "job_wait", Title: "Wait for a job", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Waits for a job and gives its result, or how far it is.",
			Help:        "A call that takes long answers with the id of a job. `job_wait` waits for it up to 35 seconds at a time; call it again while the job works. If the job asks something, the question is passed on to you.",
		}, f.wait),
		tool.New(tool.Def{
			Name: "job_list", Title: "List jobs", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Lists your jobs, newest first.",
		}, f.list),
		tool.New(tool.Def{
			Name: "job_cancel", Title: "Cancel a job", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever,
			Description: "Cancels a job that has not ended.",
		}, f.cancel),
	}}, nil
}

// State is what there is to say of a job.
type State struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Status  string  `json:"status"`
	Note    string  `json:"note,omitempty"`
	Done    float64 `json:"done,omitempty"`
	Total   float64 `json:"total,omitempty"`
	Created string  `json:"created"`
}

// stateOf says failed of a job whose tool failed: what was to be done is not.
func stateOf(r *jobs.Record) State {
	status := r.Status
	if v, ok := rawjson.Get(r.Result, "isError"); ok && status == jobs.Completed && string(v) == "true" {
		status = jobs.Failed
	}
	return State{r.ID, r.Title, string(status), r.Note, r.Done, r.Total, r.Created.Format(time.RFC3339)}
}

type waitIn struct {
	ID      string `json:"id" doc:"the job" min:"1"`
	Seconds int    `json:"seconds,omitempty" doc:"how long to wait" default:"35" min:"0" max:"35"`
}

// wait gives a job's own result once it has ended. A question of the job
// becomes a question of this call.
func (f *follower) wait(ctx context.Context, c *tool.Call, in waitIn) (tool.Result, error) {
	owner := c.Caller.Owner
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Seconds)*time.Second)
	defer cancel()
	rec, err := f.jobs.Wait(ctx, owner, in.ID, func(r jobs.Record) bool {
		return r.Status.Terminal() || r.Status == jobs.InputRequired
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jobs.ErrTerminal) {
		return tool.Result{}, missing(err)
	}
	switch rec.Status {
	case jobs.Completed:
		return tool.Result{Raw: rec.Result}, nil
	case jobs.Failed:
		if rec.Error != nil {
			return tool.Result{}, rec.Error
		}
		return tool.Result{}, tool.Refuse("failed", "the job failed")
	case jobs.InputRequired:
		answers, err := c.Peer.Ask(rec.Questions...)
		if err != nil {
			return tool.Result{}, err
		}
		if rec, err = f.jobs.Answer(owner, in.ID, answers); err != nil {
			return tool.Result{}, missing(err)
		}
	}
	return tool.Typed(stateOf(&rec)), nil
}

func missing(err error) error {
	if errors.Is(err, jobs.ErrNotFound) {
		return &tool.Refusal{Code: "not_found", Message: err.Error(), Next: "job_list shows the jobs there are."}
	}
	return err
}

type listIn struct {
	Cursor string `json:"cursor,omitempty" doc:"next_cursor of the page before"`
}

type listOut struct {
	Jobs []State `json:"jobs"`
	Next string  `json:"next_cursor,omitempty"`
}

func (f *follower) list(_ context.Context, c *tool.Call, in listIn) (listOut, error) {
	recs, next, err := f.jobs.List(c.Caller.Owner, in.Cursor, 50)
	if err != nil {
		return listOut{}, tool.Refuse("invalid_arguments", "cursor: %v", err)
	}
	out := listOut{Jobs: []State{}, Next: next}
	for i := range recs {
		out.Jobs = append(out.Jobs, stateOf(f.whole(&recs[i])))
	}
	return out, nil
}

// whole is a completed job with its result, which lists come without.
func (f *follower) whole(r *jobs.Record) *jobs.Record {
	if r.Status != jobs.Completed {
		return r
	}
	if full, err := f.jobs.Get(r.Owner, r.ID); err == nil {
		return &full
	}
	return r // it is gone by now
}

type cancelIn struct {
	ID string `json:"id" doc:"the job" min:"1"`
}

func (f *follower) cancel(_ context.Context, c *tool.Call, in cancelIn) (State, error) {
	rec, err := f.jobs.Cancel(c.Caller.Owner, in.ID)
	if err != nil && !errors.Is(err, jobs.ErrTerminal) {
		return State{}, missing(err)
	}
	return stateOf(&rec), nil
}
