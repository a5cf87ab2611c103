package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// task is a call that runs as a job.
type task struct{ run *jobs.Running }

// taskRequest is the stored request of a job. It allows any node to run a further
// round, also after a restart.
type taskRequest struct {
	Call     string          `json:"call"`
	Tool     string          `json:"tool"` // as the caller's view names it
	Args     json.RawMessage `json:"args,omitempty"`
	Params   json.RawMessage `json:"params,omitempty"`
	Caller   tool.Caller     `json:"caller"`
	Revision string          `json:"revision"`

	Start *modulehost.Start `json:"start,omitempty"` // of a job that a handler has started, to run it again
}

// missingTasks is the error for a client that cannot follow a task.
func missingTasks() *Fault {
	return &Fault{
		Status: 400, Code: CodeMissingCapability,
		Message: "this needs a client that declares the extension " + tasksExt,
		Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + tasksExt + `":{}}}}`),
	}
}

// startAsTask decides whether the call runs as a job from the start, or may become one.
// It reports whether it has handled the call.
func (r *request) startAsTask(c *call) bool {
	mode := c.entry.Tool.Task
	wish, wished := r.taskParam()
	can := r.facts.Can&tool.CanTasks != 0
	switch {
	case wished && rawjson.Kind(wish) != '{':
		r.sendFault(badParam("task", "an object, {} for nothing special"))
		return true
	case mode == tool.TaskRequired && !can && !wished:
		f := missingTasks()
		if !r.rev.Modern() {
			f = &Fault{
				Code:    CodeMethodNotFound,
				Message: c.entry.Listed + " runs only as a task: call it with params.task",
			}
		}
		r.sendFault(f)
		return true
	case wished && mode == tool.TaskNever:
		r.sendFault(&Fault{Code: CodeMethodNotFound, Message: c.entry.Listed + " does not run as a task"})
		return true
	case wished, can && (mode == tool.TaskAlways || mode == tool.TaskRequired):
		r.startTask(c)
		return true
	case can && mode == tool.TaskAuto:
		// On a new goroutine, so that the transport's is free when the call
		// has become a task.
		r.e.work.Go(func() { r.runRound(c) })
		return true
	}
	return false
}

// createTask stores the job of a call. The job is durable before the client gets its ID.
func (r *request) createTask(c *call) (*task, error) {
	req, err := encodeState(taskRequest{
		Call: c.id, Tool: c.entry.Listed, Args: c.args, Params: r.msg.Params,
		Caller: r.facts.Caller, Revision: r.rev.String(),
	})
	if err != nil {
		return nil, err
	}
	rec := jobs.Record{
		Owner: r.facts.Owner, Title: c.entry.Listed, Request: req,
		Repeatable: r.e.opts.Restart != nil && c.entry.Tool.Restartable,
	}
	if wish, ok := r.taskParam(); ok {
		ttl, _ := rawjson.Get(wish, "ttl")
		if ms, ok := rawjson.Int(ttl); ok && ms > 0 {
			rec.TTL = time.Duration(min(ms, int64(24*time.Hour/time.Millisecond))) * time.Millisecond
		}
	}
	run, err := r.e.createJob(&r.facts.Caller, rec, len(c.args))
	if err != nil {
		return nil, err
	}
	return &task{run}, nil
}

// taskParam returns params.task of 2025-11-25, with which a client requests a task.
func (r *request) taskParam() ([]byte, bool) {
	if !r.rev.Has(mcpversion.CoreTasks) {
		return nil, false
	}
	return r.msg.has.of().task, r.msg.has.of().task != nil
}

// startTask runs the call as a job and answers with it.
func (r *request) startTask(c *call) {
	t, err := r.createTask(c)
	if err != nil {
		r.sendFault(&Fault{Code: CodeInternal, Message: "task: " + err.Error()})
		return
	}
	c.task = t
	r.notifyTaskStatus(t)
	rec := t.run.Record()
	r.sendResult(r.taskCreatedResult(&rec))
	r.e.work.Go(func() { r.runTask(t.run.Context(), c) })
}

// notifyTaskStatus sends a legacy session the status changes of its task.
func (r *request) notifyTaskStatus(t *task) {
	if r.sess == nil {
		return
	}
	s := r.sess
	ended, end := context.WithCancel(context.Background())
	stop, err := r.e.opts.Jobs.Watch(r.facts.Owner, t.run.ID(), func(rec jobs.Record) {
		s.Notify(appendNote(nil, "notifications/tasks/status", legacyTask(&rec)))
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
func (r *request) runTask(ctx context.Context, c *call) {
	ctx, done := r.e.roundContext(ctx)
	defer done()
	req := r.roundRequest(c)
	req.Late = func(res dispatch.Result, err error) { c.task.storeOutcome(r, c, res, err) }
	res, err := r.e.opts.Calls.Do(ctx, req)
	if !dispatch.IsLate(err) {
		c.task.storeOutcome(r, c, res, err)
	}
}

// roundContext returns a context that also ends with the engine, which stops before the
// jobs do.
func (e *Engine) roundContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	apart := context.AfterFunc(e.base, func() { cancel(context.Cause(e.base)) })
	return ctx, func() {
		apart()
		cancel(nil)
	}
}

// interrupted reports whether a round failed because the host stops. Such a failure is
// not the tool's result.
func (e *Engine) interrupted(run *jobs.Running, res dispatch.Result, err error) bool {
	stopping := e.base.Err() != nil || errors.Is(context.Cause(run.Context()), jobs.ErrStopping)
	return stopping && (err != nil || res.IsError)
}

// convertToTask makes a running call a task and answers with it. It reports whether the
// call is a task now.
func (c *call) convertToTask() bool {
	r := c.r
	if r.facts.Can&tool.CanTasks == 0 || c.method != "tools/call" || c.entry.Tool.Task == tool.TaskNever {
		return false
	}
	return c.convert(func(t *task) []byte {
		rec := t.run.Record()
		return r.taskCreatedResult(&rec)
	})
}

// convert makes a running call a job and answers with the result of answer. It reports
// whether the call is a job now.
func (c *call) convert(answer func(*task) []byte) bool {
	r := c.r
	c.mu.Lock()
	if c.task != nil || c.concluded || r.ended() {
		defer c.mu.Unlock()
		return c.task != nil
	}
	t, err := r.createTask(c)
	if err != nil {
		c.mu.Unlock()
		r.e.opts.Log.Warn("call does not become a job", "name", c.entry.Listed, "err", err)
		return false
	}
	c.task = t
	c.mu.Unlock()
	cancel := r.cancel
	context.AfterFunc(t.run.Context(), func() { cancel(context.Cause(t.run.Context())) })
	r.detachWork()
	r.sendResult(answer(t))
	return true
}

// storeOutcome stores the outcome of a round in the job.
func (t *task) storeOutcome(r *request, c *call, res dispatch.Result, err error) {
	if p, ok := errors.AsType[*dispatch.Pending](err); ok {
		r.awaitApproval(c, p)
		return
	}
	res, err = r.refuseMissingCapability(c, res, err)
	switch {
	case r.e.interrupted(t.run, res, err):
		err = t.run.Interrupt()
	case err != nil:
		f := r.errorFault(c, err)
		err = t.run.Fail(&tool.WireError{Code: f.Code, Message: f.Message, Data: f.Data})
	case res.Input != nil:
		err = t.askQuestions(r, c, &res)
	default:
		err = t.run.Finish(r.render(nil, c, &res))
	}
	if err != nil && !errors.Is(err, jobs.ErrSettled) {
		r.e.opts.Log.Error("task outcome is lost", "task", t.run.ID(), "err", err)
	}
}

// askQuestions ends a round with its questions. If the job exceeds its limits it ends
// with a refusal.
func (t *task) askQuestions(r *request, c *call, res *dispatch.Result) error {
	c.recorded, c.round = res.Recorded, int(t.run.Record().Round)
	if ref := c.checkInputLimits(); ref != nil {
		refused := dispatch.Refused(ref)
		return t.run.Finish(r.render(nil, c, &refused))
	}
	err := t.run.Ask(res.Input.Questions, res.Recorded, res.Input.State)
	if err == nil || errors.Is(err, jobs.ErrSettled) {
		return err
	}
	return errors.Join(
		err,
		t.run.Fail(&tool.WireError{Code: CodeInternal, Message: "the task cannot ask: " + err.Error()}),
	)
}

// CanResume reports whether this host can run a round of a job that another node has left.
func (e *Engine) CanResume(ctx context.Context, rec jobs.Record, canRestart func(*modulehost.Start) bool) bool {
	var q taskRequest
	if json.Unmarshal(rec.Request, &q) != nil {
		return false
	}
	if q.Start != nil {
		return canRestart(q.Start)
	}
	v, err := e.opts.Views.View(ctx, &q.Caller, e.opts.Views.Cut(q.Caller))
	return err == nil && v.Tool(q.Tool) != nil
}

// readmit passes the call that has started a job through the rules of today.
func (e *Engine) readmit(ctx context.Context, q *taskRequest) error {
	facts := &session.Facts{Caller: q.Caller, Cut: e.opts.Views.Cut(q.Caller)}
	v, err := e.opts.Views.View(ctx, &facts.Caller, facts.Cut)
	if err != nil {
		return tool.Refuse(tool.CodeDenied, "%s was not run again after its host had ended: context %q: %v", q.Start.Name,
			q.Caller.Context, err)
	}
	for _, entry := range v.Entries(views.Tools) {
		if entry.Module == q.Start.Module && entry.Name == q.Start.Name {
			return e.opts.Calls.Readmit(&dispatch.Request{
				ID: q.Start.Call, Facts: facts, Entry: entry, Method: "tools/call", Args: q.Start.Args, Params: q.Start.Params,
			}, q.Start.Approved)
		}
	}
	return tool.Refuse(tool.CodeDenied, "%s was not run again after its host had ended: its caller is not offered it now",
		q.Start.Name)
}

// resumeJob runs the next round of a job when all its questions are answered.
func (e *Engine) resumeJob(ctx context.Context, rec jobs.Record, run *jobs.Running) {
	if round, ok := e.rounds.findRound(rec.ID); ok {
		e.runRound(ctx, run, round, rec.Recorded, rec.State)
		return
	}
	var q taskRequest
	if err := json.Unmarshal(rec.Request, &q); err != nil {
		run.Fail(&tool.WireError{Code: CodeInternal, Message: "this job is from another release of the host"})
		return
	}
	if e.opts.Present != nil {
		now, err := e.opts.Present(ctx, q.Caller)
		if err != nil {
			e.endRound(run, tool.Result{}, err)
			return
		}
		q.Caller = now
	}
	if q.Start != nil && e.opts.Restart != nil {
		if err := e.readmit(ctx, &q); err != nil {
			e.endRound(run, tool.Result{}, err)
			return
		}
		e.runRound(ctx, run, e.opts.Restart(rec.ID, q.Caller, q.Start), rec.Recorded, rec.State)
		return
	}
	r := &request{
		e:          e,
		msg:        &Message{Params: q.Params},
		facts:      &session.Facts{Caller: q.Caller},
		factsOwned: true,
		ctx:        ctx,
		cancel:     func(error) {},
	}
	r.rev, _ = mcpversion.Parse(q.Revision)
	r.facts.Revision = r.rev
	r.facts.Cut = e.opts.Views.Cut(q.Caller)
	c := &call{
		r:        r,
		method:   "tools/call",
		args:     q.Args,
		id:       q.Call,
		recorded: rec.Recorded,
		state:    rec.State,
		task:     &task{run},
	}
	r.end.ended = true // no client waits for an answer
	v, err := e.opts.Views.View(ctx, &r.facts.Caller, r.facts.Cut)
	if err == nil {
		c.entry = v.Tool(q.Tool)
	}
	if c.entry == nil {
		text := "unknown tool: " + q.Tool + "; it no longer exists"
		if q.Tool == "" {
			text = "the function of this job was lost when the host stopped; start the job again"
		}
		run.Fail(&tool.WireError{Code: CodeInvalidParams, Message: text})
		return
	}
	r.runTask(ctx, c)
}

// taskCreatedResult returns the result of a call that has become a task.
func (r *request) taskCreatedResult(rec *jobs.Record) []byte {
	if r.rev.Modern() {
		b := append([]byte("{"), taskMembers(rec, "ttlMs", "pollIntervalMs")...)
		return append(append(b, r.e.envelope("task")...), '}')
	}
	return append(append([]byte(`{"task":`), legacyTask(rec)...), '}')
}

// taskMembers encodes the members that all revisions of a task have.
func taskMembers(rec *jobs.Record, ttl, poll string) []byte {
	b := []byte(`"taskId":`)
	b = rawjson.AppendString(b, rec.ID)
	b = append(b, `,"status":"`+string(rec.Status)+`"`...)
	if rec.Note != "" {
		b = append(b, `,"statusMessage":`...)
		b = rawjson.AppendString(b, rec.Note)
	}
	const stamp = "2006-01-02T15:04:05.000Z"
	b = append(
		b,
		`,"createdAt":"`+rec.Created.UTC().Format(stamp)+`","lastUpdatedAt":"`+rec.Updated.UTC().Format(stamp)+`"`...)
	b = append(b, `,"`+ttl+`":`...)
	b = strconv.AppendInt(b, rec.TTL.Milliseconds(), 10)
	b = append(b, `,"`+poll+`":`...)
	return strconv.AppendInt(b, max(rec.Poll.Milliseconds(), 1), 10)
}

// taskState encodes a task for the extension: with its result, its error, or its open
// questions.
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
		r.sendFault(missingTasks())
		return "", false
	}
	id, f := r.required("taskId")
	if f == nil {
		f = r.nameHeader(id)
	}
	if f != nil {
		r.sendFault(f)
		return "", false
	}
	return id, true
}

func (r *request) noTask(err error) {
	r.sendFault(&Fault{Status: 400, Code: CodeInvalidParams, Message: "params.taskId: " + err.Error()})
}

// taskGet serves tasks/get.
func (r *request) taskGet() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	rec, err := r.e.opts.Tasks.Get(r.facts.Owner, id)
	if err != nil {
		r.noTask(err)
		return
	}
	if !r.rev.Modern() {
		r.sendResult(legacyTask(&rec))
		return
	}
	b := taskState(&rec)
	r.sendResult(append(append(b[:len(b)-1], r.e.envelope("complete")...), '}'))
}

// taskCancel serves tasks/cancel. In the extension it is only acknowledged,
// also for a task that has ended.
func (r *request) taskCancel() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	rec, err := r.e.opts.Tasks.Cancel(r.facts.Owner, id)
	switch {
	case err != nil && !errors.Is(err, jobs.ErrTerminal):
		r.noTask(err)
	case r.rev.Modern():
		r.sendResult(r.empty())
	case err != nil:
		r.sendFault(&Fault{Code: CodeInvalidParams,
			Message: "params.taskId: the task has ended: " + string(rec.Status)})
	default:
		r.sendResult(legacyTask(&rec))
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
		r.sendFault(badParam("inputResponses", "an object of answers by key, at most 64 KiB"))
		return
	}
	answers := map[string]json.RawMessage{}
	for k, v := range rawjson.Object(raw) {
		answers[string(k)] = v
	}
	if _, err := r.e.opts.Tasks.Answer(r.facts.Owner, id, answers); err != nil && !errors.Is(err, jobs.ErrTerminal) {
		r.noTask(err)
		return
	}
	r.sendResult(r.empty())
}

var _ dispatch.Notes = (*call)(nil)
