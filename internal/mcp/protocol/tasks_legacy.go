package protocol

import (
	"encoding/json"
	"slices"
	"strconv"
	"sync"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// The tasks of 2025-11-25: the client asks for one with params.task, fetches
// the result with a request that waits, and is asked on that request's stream.

// legacyTask returns a task in the form of 2025-11-25, in which a tool's own failure fails the task.
func legacyTask(rec *jobs.Record) []byte {
	shown := *rec
	if v, ok := rawjson.Get(rec.Result, "isError"); ok && rec.Status == jobs.Completed && string(v) == "true" {
		shown.Status = jobs.Failed
	}
	b := append([]byte("{"), taskMembers(&shown, "ttl", "pollInterval")...)
	return append(b, '}')
}

// taskList serves tasks/list.
func (r *request) taskList() {
	cursor, f := r.param("cursor")
	if f != nil {
		r.sendFault(f)
		return
	}
	list, next, err := r.e.opts.Tasks.List(r.facts.Owner, cursor, 100)
	if err != nil {
		r.sendFault(&Fault{Code: CodeInvalidParams, Message: "params.cursor: " + err.Error()})
		return
	}
	b := []byte(`{"tasks":[`)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, legacyTask(r.withResult(&list[i]))...)
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"nextCursor":`...)
		b = rawjson.AppendString(b, next)
	}
	r.sendResult(append(b, '}'))
}

// withResult returns a completed task with its result, which shows whether the tool
// failed. Lists omit results.
func (r *request) withResult(rec *jobs.Record) *jobs.Record {
	if rec.Status != jobs.Completed || rec.Result != nil {
		return rec
	}
	full, err := r.e.opts.Tasks.Get(rec.Owner, rec.ID)
	if err != nil {
		return rec // expired meanwhile
	}
	return &full
}

// taskFetch is one tasks/result request that waits.
type taskFetch struct {
	r           *request
	id          string
	mu          sync.Mutex
	sent        map[string]bool // questions that were sent to the client, by round
	inputClosed bool            // the client has closed its input
}

// taskResult serves tasks/result: it answers when the task has ended, and
// meanwhile puts the task's questions to the client. No goroutine waits.
func (r *request) taskResult() {
	id, ok := r.taskID()
	if !ok {
		return
	}
	f := &taskFetch{r: r, id: id, sent: map[string]bool{}}
	stop, err := r.e.opts.Tasks.Watch(r.facts.Owner, id, f.update)
	if err != nil {
		r.noTask(err)
		return
	}
	r.onRelease(stop)
	rec, err := r.e.opts.Tasks.Get(r.facts.Owner, id)
	if err != nil {
		r.noTask(err)
		return
	}
	f.update(rec)
	r.park(f.closeInput)
}

// closeInput fails the request if the task waits for an answer that cannot arrive.
func (f *taskFetch) closeInput() {
	f.mu.Lock()
	f.inputClosed = true
	f.mu.Unlock()
	if rec, err := f.r.e.opts.Tasks.Get(f.r.facts.Owner, f.id); err == nil {
		f.update(rec)
	}
}

// update handles the latest state of the task.
func (f *taskFetch) update(rec jobs.Record) {
	switch rec.Status {
	case jobs.Completed:
		f.r.sendResult(f.related(rec.Result))
	case jobs.Failed:
		fault := &Fault{Code: CodeInternal, Message: "the task failed"}
		if rec.Error != nil {
			fault.Code, fault.Message, fault.Data = rec.Error.Code, rec.Error.Message, rec.Error.Data
		}
		f.r.sendFault(fault)
	case jobs.Cancelled:
		f.r.sendFault(&Fault{Code: CodeInvalidRequest, Message: "the task was cancelled"})
	case jobs.InputRequired:
		f.sendQuestions(rec)
	}
}

// related marks an object with the task it belongs to.
func (f *taskFetch) related(obj []byte) []byte {
	id, _ := json.Marshal(map[string]string{"taskId": f.id})
	meta, ok := rawjson.Get(obj, "_meta")
	if !ok {
		meta = []byte("{}")
	}
	meta = rawjson.Splice(meta, rawjson.Edit{Key: metaTask, Value: id})
	return rawjson.Splice(obj, rawjson.Edit{Key: "_meta", Value: meta})
}

// sendQuestions sends each open question to the client once.
func (f *taskFetch) sendQuestions(rec jobs.Record) {
	for _, q := range rec.Questions {
		key := strconv.FormatInt(rec.Round, 10) + " " + q.Key
		f.mu.Lock()
		again, deaf := f.sent[key], f.inputClosed
		f.sent[key] = true
		f.mu.Unlock()
		switch {
		case deaf:
			f.r.sendFault(
				&Fault{Code: CodeInvalidRequest, Message: "the task waits for an answer; " + errInputClosed.Error()},
			)
			return
		case !again:
			f.sendQuestion(q)
		}
	}
}

// sendQuestion sends one question. Its answer goes to the job, even if this request has
// ended.
func (f *taskFetch) sendQuestion(q tool.Question) {
	r := f.r
	id, ok := r.sess.Expect(func(rep session.Reply) {
		if rep.Result == nil {
			return // declined by the client program: the question stays open
		}
		answer := map[string]json.RawMessage{q.Key: slices.Clone(rep.Result)}
		r.e.work.Go(func() { r.e.opts.Tasks.Answer(r.facts.Owner, f.id, answer) })
	})
	if ok && !r.sendRequest(appendRequest(nil, id, q.Method, f.related(questionParams(r.rev, q)))) {
		r.sess.ForgetExpected(id)
	}
}
