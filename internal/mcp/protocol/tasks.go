package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// task is a call that has become a job.
type task struct{ run *jobs.Running }

// taskRequest is what a job needs to run a further round, on any node and
// after a restart.
type taskRequest struct {
	Call     string          `json:"call"`
	Tool     string          `json:"tool"` // as the caller's view names it
	Args     json.RawMessage `json:"args,omitempty"`
	Params   json.RawMessage `json:"params,omitempty"`
	Caller   tool.Caller     `json:"caller"`
	Revision string          `json:"revision"`
}

// missingTasks is the error for a client that cannot follow a task.
func missingTasks() *Fault {
	return &Fault{
		Status: 400, Code: CodeMissingCapability,
		Message: "this needs a client that declares the extension " + tasksExt,
		Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + tasksExt + `":{}}}}`),
	}
}

// asTask decides whether the call runs as a job from the start, or may become
// one, and reports whether it has taken the call over.
func (r *request) asTask(c *conversation) bool {
	mode := c.entry.Tool.Task
	wish, wished := r.wish()
	can := r.facts.Can&tool.CanTasks != 0
	switch {
	case wished && rawjson.Kind(wish) != '{':
		r.fail(badParam("task", "an object, {} for nothing special"))
		return true
	case mode == tool.TaskRequired && !can && !wished:
		f := missingTasks()
		if !r.rev.Modern() {
			f = &Fault{Code: CodeMethodNotFound, Message: c.entry.Listed + " runs only as a task: call it with params.task"}
		}
		r.fail(f)
		return true
	case wished && mode == tool.TaskNever:
		r.fail(&Fault{Code: CodeMethodNotFound, Message: c.entry.Listed + " does not run as a task"})
		return true
	case wished, can && (mode == tool.TaskAlways || mode == tool.TaskRequired):
		r.startTask(c)
		return true
	case can && mode == tool.TaskAuto:
		// On a goroutine of its own, so that the door's is free once the
		// call has been promoted.
		r.e.work.Go(func() { r.run(c) })
		return true
	}
	return false
}

// create makes the job of a call. It is durable before the client hears of it.
func (r *request) create(c *conversation) (*task, error) {
	req, err := encodeKept(taskRequest{
		Call: c.id, Tool: c.entry.Listed, Args: c.args, Params: r.msg.Params,
		Caller: r.facts.Caller, Revision: r.rev.String(),
	})
	if err != nil {
		return nil, err
	}
	rec := jobs.Record{Owner: r.facts.Owner, Title: c.entry.Listed, Request: req}
	if wish, ok := r.wish(); ok {
		ttl, _ := rawjson.Get(wish, "ttl")
		if ms, ok := rawjson.Int(ttl); ok && ms > 0 {
			rec.TTL = time.Duration(min(ms, int64(24*time.Hour/time.Millisecond))) * time.Millisecond
		}
	}
	run, err := r.e.opts.Jobs.Create(r.e.base, rec)
	if err != nil {
		return nil, err
	}
	return &task{run}, nil
}

// wish is what a client of 2025-11-25 says of the task it wants.
func (r *request) wish() ([]byte, bool) {
	if !r.rev.Has(mcpversion.CoreTasks) {
		return nil, false
	}
	return r.msg.has.of().task, r.msg.has.of().task != nil
}

// startTask runs the call as a job and answers with it.
func (r *request) startTask(c *conversation) {
	t, err := r.create(c)
	if err != nil {
		r.fail(&Fault{Code: CodeInternal, Message: "task: " + err.Error()})
		return
	}
	c.task = t
	r.announce(t)
	rec := t.run.Record()
	r.result(r.created(&rec))
	r.e.work.Go(func() { r.runTask(t.run.Context(), c) })
}

// announce keeps a legacy session informed of its task.
func (r *request) announce(t *task) {
	if r.sess == nil {
		return
	}
	s := r.sess
	ended, end := context.WithCancel(context.Background())
	stop, err := r.e.opts.Jobs.Watch(r.facts.Owner, t.run.ID(), func(rec jobs.Record) {
		s.Tell(appendNote(nil, "notifications/tasks/status", legacyTask(&rec)))
		if rec.Status.Terminal() {
			end()
		}
	})
	if err != nil {
		end()
		return
	}
	context.AfterFunc(ended, stop)
	s.OnEnd(end)
}

// runTask runs one round of a job.
func (r *request) runTask(ctx context.Context, c *conversation) {
	ctx, done := r.e.round(ctx)
	defer done()
	req := r.roundOf(c)
	req.Late = func(res dispatch.Result, err error) { c.task.settle(r, c, res, err) }
	res, err := r.e.opts.Calls.Do(ctx, req)
	if !dispatch.IsLate(err) {
		c.task.settle(r, c, res, err)
	}
}

// round gives a job's context an end with the engine, which stops before the
// jobs do.
func (e *Engine) round(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	apart := context.AfterFunc(e.base, func() { cancel(context.Cause(e.base)) })
	return ctx, func() {
		apart()
		cancel(nil)
	}
}

// interrupted reports whether a round failed because the host stops. What the
// handler said about that is no answer of the tool.
func (e *Engine) interrupted(run *jobs.Running, res dispatch.Result, err error) bool {
	stopping := e.base.Err() != nil || errors.Is(context.Cause(run.Context()), jobs.ErrStopping)
	return stopping && (err != nil || res.IsError)
}

// promote makes a job of a call that already runs, and answers with it. It
// reports whether the call is one now.
func (c *conversation) promote() bool {
	r := c.r
	if r.facts.Can&tool.CanTasks == 0 || c.method != "tools/call" || c.entry.Tool.Task == tool.TaskNever {
		return false
	}
	return c.become(func(t *task) []byte {
		rec := t.run.Record()
		return r.created(&rec)
	})
}

// become makes a job of a call that runs, and gives the client what answer
// says. It reports whether the call is a job now.
func (c *conversation) become(answer func(*task) []byte) bool {
	r := c.r
	c.mu.Lock()
	if c.task != nil || c.closed || r.ended() {
		defer c.mu.Unlock()
		return c.task != nil
	}
	t, err := r.create(c)
	if err != nil {
		c.mu.Unlock()
		r.e.opts.Log.Warn("call does not become a job", "name", c.entry.Listed, "err", err)
		return false
	}
	c.task = t
	c.mu.Unlock()
	cancel := r.cancel
	context.AfterFunc(t.run.Context(), func() { cancel(context.Cause(t.run.Context())) })
	r.keep()
	r.result(answer(t))
	return true
}

// settle writes a round's outcome into the job.
func (t *task) settle(r *request, c *conversation, res dispatch.Result, err error) {
	if p, ok := errors.AsType[*dispatch.Pending](err); ok {
		r.await(c, p)
		return
	}
	res, err = r.unable(c, res, err)
	switch {
	case r.e.interrupted(t.run, res, err):
		err = t.run.Interrupt()
	case err != nil:
		f := r.fault(c, err)
		err = t.run.Fail(&tool.WireError{Code: f.Code, Message: f.Message, Data: f.Data})
	case res.Input != nil:
		err = t.ask(r, c, &res)
	default:
		err = t.run.Finish(r.render(nil, c, &res))
	}
	if err != nil && !errors.Is(err, jobs.ErrSettled) {
		r.e.opts.Log.Error("task outcome is lost", "task", t.run.ID(), "err", err)
	}
}

// ask ends a round with its questions, unless the job asks too much.
func (t *task) ask(r *request, c *conversation, res *dispatch.Result) error {
	c.recorded, c.round = res.Recorded, int(t.run.Record().Round)
	if ref := c.overdrawn(); ref != nil {
		refused := dispatch.Refused(ref)
		return t.run.Finish(r.render(nil, c, &refused))
	}
	err := t.run.Ask(res.Input.Questions, res.Recorded, res.Input.State)
	if err == nil || errors.Is(err, jobs.ErrSettled) {
		return err
	}
	return errors.Join(err, t.run.Fail(&tool.WireError{Code: CodeInternal, Message: "the task cannot ask: " + err.Error()}))
}

// resumeJob runs a further round of a job whose answers are complete.
func (e *Engine) resumeJob(ctx context.Context, rec jobs.Record, run *jobs.Running) {
	if round, ok := e.rounds.take(rec.ID); ok {
		e.runRound(ctx, run, round, rec.Recorded, rec.State)
		return
	}
	var q taskRequest
	if err := json.Unmarshal(rec.Request, &q); err != nil {
		run.Fail(&tool.WireError{Code: CodeInternal, Message: "this job is from another release of the host"})
		return
	}
	r := &request{e: e, msg: &Message{Params: q.Params}, facts: &session.Facts{Caller: q.Caller}, owns: true, ctx: ctx, cancel: func(error) {}}
	r.rev, _ = mcpversion.Parse(q.Revision)
	r.facts.Revision = r.rev
	r.facts.Cut = e.opts.Views.Cut(q.Caller)
	c := &conversation{r: r, method: "tools/call", args: q.Args, id: q.Call, recorded: rec.Recorded, state: rec.State, task: &task{run}}
	r.end.ended = true // nobody waits for an answer here
	v, err := e.opts.Views.View(ctx, &r.facts.Caller, r.facts.Cut)
	if err == nil {
		c.entry = v.Tool(q.Tool)
	}
	if c.entry == nil {
		text := "unknown tool: " + q.Tool + "; it is no longer there"
		if q.Tool == "" {
			text = "what this job runs was lost when the host stopped; start it again"
		}
		run.Fail(&tool.WireError{Code: CodeInvalidParams, Message: text})
		return
	}
	r.runTask(ctx, c)
}

// created is the result that says a call has become a task.
func (r *request) created(rec *jobs.Record) []byte {
	if r.rev.Modern() {
		b := append([]byte("{"), taskMembers(rec, "ttlMs", "pollIntervalMs")...)
		return append(append(b, r.e.envelope("task")...), '}')
	}
	return append(append([]byte(`{"task":`), legacyTask(rec)...), '}')
}

// taskMembers writes what every form of a task has.
func taskMembers(rec *jobs.Record, ttl, poll string) []byte {
	b := []byte(`"taskId":`)
	b = rawjson.AppendString(b, rec.ID)
	b = append(b, `,"status":"`+string(rec.Status)+`"`...)
	if rec.Note != "" {
		b = append(b, `,"statusMessage":`...)
		b = rawjson.AppendString(b, rec.Note)
	}
	const stamp = "2006-01-02T15:04:05.000Z"
	b = append(b, `,"createdAt":"`+rec.Created.UTC().Format(stamp)+`","lastUpdatedAt":"`+rec.Updated.UTC().Format(stamp)+`"`...)
	b = append(b, `,"`+ttl+`":`...)
	b = strconv.AppendInt(b, rec.TTL.Milliseconds(), 10)
	b = append(b, `,"`+poll+`":`...)
	return strconv.AppendInt(b, max(rec.Poll.Milliseconds(), 1), 10)
}

// taskState is a task as the extension shows it: with its result, its error,
// or its open questions.
func taskState(rec *jobs.Record) []byte {
	b := append([]byte("{"), taskMembers(rec, "ttlMs", "pollIntervalMs")...)
	switch rec.Status {
	case jobs.Completed:
		b = append(append(b, `,"result":`...), rec.Result...)
	case jobs.Failed:
		b = append(append(b, `,"error":`...), wireError(rec.Error)...)
	case jobs.InputRequired:
		b = append(b, `,"inputRequests":{`...)
		for i, q := range rec.Questions {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(rawjson.AppendString(b, q.Key), ':')
			b = appendQuestion(b, mcpversion.Latest, q)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func wireError(e *tool.WireError) []byte {
	if e == nil {
		e = &tool.WireError{Code: CodeInternal, Message: "the job failed"}
	}
	b, err := json.Marshal(e)
	if err != nil {
		b, _ = json.Marshal(&tool.WireError{Code: e.Code, Message: e.Message})
	}
	return b
}

// taskID reads which task a request is about. Modern requests must have
// declared the extension.
func (r *request) taskID() (string, bool) {
	if r.rev.Modern() && r.facts.Can&tool.CanTasks == 0 {
		r.fail(missingTasks())
		return "", false
	}
	id, f := r.required("taskId")
	if f == nil {
		f = r.nameHeader(id)
	}
	if f != nil {
		r.fail(f)
		return "", false
	}
	return id, true
}

func (r *request) noTask(err error) {
	r.fail(&Fault{Status: 400, Code: CodeInvalidParams, Message: "params.taskId: " + err.Error()})
}

// taskGet serves tasks/get.
func (r *request) taskGet() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	rec, err := r.e.opts.Jobs.Get(r.facts.Owner, id)
	if err != nil {
		r.noTask(err)
		return
	}
	if !r.rev.Modern() {
		r.result(legacyTask(&rec))
		return
	}
	b := taskState(&rec)
	r.result(append(append(b[:len(b)-1], r.e.envelope("complete")...), '}'))
}

// taskCancel serves tasks/cancel. In the extension it is only acknowledged,
// also for a task that has ended.
func (r *request) taskCancel() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	rec, err := r.e.opts.Jobs.Cancel(r.facts.Owner, id)
	switch {
	case err != nil && !errors.Is(err, jobs.ErrTerminal):
		r.noTask(err)
	case r.rev.Modern():
		r.result(r.empty())
	case err != nil:
		r.fail(&Fault{Code: CodeInvalidParams, Message: "params.taskId: the task has ended: " + string(rec.Status)})
	default:
		r.result(legacyTask(&rec))
	}
}

// taskUpdate serves tasks/update: answers to a task's questions.
func (r *request) taskUpdate() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	raw := r.msg.has.of().inputResponses
	if rawjson.Kind(raw) != '{' || len(raw) > maxAnswers {
		r.fail(badParam("inputResponses", "an object of answers by key, at most 64 KiB"))
		return
	}
	answers := map[string]json.RawMessage{}
	for k, v := range rawjson.Object(raw) {
		answers[string(k)] = v
	}
	if _, err := r.e.opts.Jobs.Answer(r.facts.Owner, id, answers); err != nil && !errors.Is(err, jobs.ErrTerminal) {
		r.noTask(err)
		return
	}
	r.result(r.empty())
}

var _ dispatch.Notes = (*conversation)(nil)
