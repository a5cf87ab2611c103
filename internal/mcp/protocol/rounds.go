package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/tool"
)

// rounds holds the jobs that handlers have started themselves. Their functions exist in this process
// only: in another one such a job fails, unless the call that started it can be run again there.
type rounds struct {
	mu sync.Mutex
	by map[string]modulehost.Round
}

func (x *rounds) init() { x.by = make(map[string]modulehost.Round) }

// StartJob runs a function that outlives the call which starts it; see module.Deps.Job.
func (e *Engine) StartJob(
	who tool.Caller, title string, run modulehost.Round, from *modulehost.Start,
) (string, error) {
	if e.opts.Restart == nil {
		from = nil
	}
	req, err := json.Marshal(taskRequest{Caller: who, Revision: mcpversion.Latest.String(), Start: from})
	if err != nil {
		return "", err
	}
	rec := jobs.Record{Owner: who.Owner, Title: title, Request: req, Repeatable: from != nil}
	job, err := e.createJob(&who, rec, 0)
	if err != nil {
		return "", err
	}
	e.rounds.mu.Lock()
	e.rounds.by[job.ID()] = run
	e.rounds.mu.Unlock()
	e.work.Go(func() { e.runRound(job.Context(), job, run, nil, nil) })
	return job.ID(), nil
}

// createJob stores a job of a caller and counts it as long as its first round runs, with the bytes of its arguments:
// its message has been answered, but what it passes, such as the input of a process, is still in memory. The error may
// be a *limit.Busy.
func (e *Engine) createJob(who *tool.Caller, rec jobs.Record, size int) (*jobs.Running, error) {
	held, err := e.opts.Working.Acquire(who, 1)
	if err != nil {
		return nil, err
	}
	input, err := e.opts.Bytes.Acquire(who, int64(size))
	if err != nil {
		held.Release()
		return nil, err
	}
	release := func() { held.Release(); input.Release() }
	run, err := e.opts.Jobs.Create(e.base, rec)
	if err != nil {
		release()
		return nil, err
	}
	context.AfterFunc(run.Context(), release)
	return run, nil
}

// findRound returns the function that a waiting job runs.
func (x *rounds) findRound(id string) (modulehost.Round, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	run, ok := x.by[id]
	return run, ok
}

// forgetWhenEnded drops the function of a job that waits for answers when the job ends.
// A cancelled job runs no further round that could drop it.
func (x *rounds) forgetWhenEnded(j *jobs.Manager, rec jobs.Record) {
	ended, end := context.WithCancel(context.Background())
	stop, err := j.Watch(rec.Owner, rec.ID, func(now jobs.Record) {
		if now.Status.Terminal() {
			x.dropRound(rec.ID)
		}
		if now.Status != jobs.InputRequired {
			end()
		}
	})
	if err != nil {
		end()
		return
	}
	context.AfterFunc(ended, stop)
}

func (x *rounds) dropRound(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.by, id)
}

// runRound runs one round and writes its outcome into the job.
func (e *Engine) runRound(
	ctx context.Context,
	job *jobs.Running,
	run modulehost.Round,
	recorded map[string]json.RawMessage,
	state []byte,
) {
	ctx, done := e.roundContext(ctx)
	defer done()
	out, err := run(ctx, recorded, state, jobNotes{job})
	if err == nil && out.Result.Input != nil {
		if err = job.Ask(out.Result.Input.Questions, out.Recorded, out.Result.Input.State); err == nil {
			e.rounds.forgetWhenEnded(e.opts.Jobs, job.Record())
			return
		}
	}
	e.rounds.dropRound(job.ID())
	e.endRound(job, out.Result, err)
}

// endRound ends a job with the result or the error of its last round.
func (e *Engine) endRound(job *jobs.Running, res tool.Result, err error) {
	if err := e.finishRound(job, res, err); err != nil && !errors.Is(err, jobs.ErrSettled) {
		e.opts.Log.Error("job outcome is lost", "job", job.ID(), "err", err)
	}
}

func (e *Engine) finishRound(job *jobs.Running, res tool.Result, err error) error {
	if e.interrupted(job, dispatch.Result{Result: res}, err) {
		return job.Interrupt()
	}
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		return job.Fail(w)
	}
	settled := dispatch.Result{}
	if err != nil {
		ref, ok := errors.AsType[*tool.Refusal](err)
		if !ok {
			ref = &tool.Refusal{Message: err.Error()}
		}
		settled = dispatch.Refused(ref)
	} else if settled, err = dispatch.EncodeResult(res); err != nil {
		return job.Fail(&tool.WireError{Code: CodeInternal, Message: "output: " + err.Error()})
	}
	r := &request{e: e, msg: &Message{}, rev: mcpversion.Latest}
	return job.Finish(r.render(nil, &call{r: r, method: "tools/call"}, &settled))
}

// jobNotes reports the progress of a job's handler.
type jobNotes struct{ run *jobs.Running }

func (n jobNotes) Progress(done, total float64, note string) { n.run.Progress(done, total, note) }
func (n jobNotes) Log(slog.Level, json.RawMessage)           {}
func (n jobNotes) Output([]byte)                             {}
func (n jobNotes) Detach()                                   {}

// Job returns the id of the job, for tool.JobOf.
func (n jobNotes) Job() string { return n.run.ID() }

// Keep returns false, because the function of the job exists in this process only.
func (n jobNotes) Keep(map[string]json.RawMessage) bool { return false }

var _ bus.Notes = jobNotes{}
