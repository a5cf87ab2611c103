package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// tasksExtension declares that results may be tasks of the extension of 2026-07-28.
var tasksExtension = json.RawMessage(`{"io.modelcontextprotocol/tasks":{}}`)

const (
	relatedTask = "io.modelcontextprotocol/related-task"

	leastPoll   = 50 * time.Millisecond // between two looks at a task, whatever its server says
	mostPoll    = 10 * time.Second
	defaultPoll = time.Second
)

// Task is a task of a package's server, in either design of the protocol.
type Task struct {
	ID      string        `json:"taskId"`
	Status  string        `json:"status"` // working, input_required, completed, failed or cancelled
	Message string        `json:"statusMessage"`
	Poll    time.Duration `json:"-"` // when to look again
	// Questions are those that the server asks, in the extension alone, by key.
	Questions map[string]tool.Question `json:"-"`
	// Result is that of a task that has ended with one.
	Result json.RawMessage `json:"-"`
}

// TaskOf returns the task that a server answered a call with.
func TaskOf(result json.RawMessage) (t Task, ok bool) {
	if kind, _ := rawjson.Get(result, "resultType"); rawjson.Equal(kind, "task") {
		t = parseTask(result)
	} else if of, found := rawjson.Get(result, "task"); found && rawjson.Kind(of) == '{' {
		t = parseTask(of)
	}
	return t, t.ID != ""
}

func parseTask(raw json.RawMessage) (t Task) {
	json.Unmarshal(raw, &t) // a task that cannot be decoded has no ID
	t.Poll = defaultPoll
	for _, name := range []string{"pollInterval", "pollIntervalMs"} {
		v, _ := rawjson.Get(raw, name)
		if ms, ok := rawjson.Int(v); ok {
			t.Poll = min(max(time.Duration(ms)*time.Millisecond, leastPoll), mostPoll)
		}
	}
	t.Message = shorten(t.Message, 1000)
	return t
}

// isLegacy reports whether the server spoke a legacy revision when it last ran.
func (p *managedPackage) isLegacy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Server.Protocol != modernRevision
}

// IsLegacy reports whether the server of a package spoke a legacy revision when it last ran.
func (h *Manager) IsLegacy(id string) bool {
	p, err := h.findPackage(id)
	return err == nil && p.isLegacy()
}

// Task returns the state of a task. from is the caller of the request that began it, who can
// answer nothing here. The error of a task that failed is a *tool.WireError.
func (h *Manager) Task(ctx context.Context, id, task string, from *Peer) (Task, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return Task{}, err
	}
	raw, err := p.taskRequest(ctx, "tasks/get", task, from)
	if err != nil {
		return Task{}, err
	}
	t := parseTask(raw)
	switch {
	case t.ID != task:
		return t, fmt.Errorf("the server of package %s answered about another task than %.100q", id, task)
	case p.isLegacy():
		if t.Status == "completed" || t.Status == "failed" {
			t.Result, err = p.taskRequest(ctx, "tasks/result", task, from)
			t.Status = "completed"
		}
	case t.Status == "completed":
		t.Result, _ = rawjson.Get(raw, "result")
	case t.Status == "failed":
		var e client.RPCError
		if of, _ := rawjson.Get(raw, "error"); json.Unmarshal(of, &e) != nil {
			e = client.RPCError{Code: -32603, Message: "the task failed"}
		}
		return t, wireError(&e)
	case t.Status == "input_required":
		t.Questions = map[string]tool.Question{}
		asked, _ := rawjson.Get(raw, "inputRequests")
		for key, q := range rawjson.Object(asked) {
			one := tool.Question{Key: string(key)}
			if err := json.Unmarshal(q, &one); err != nil {
				return t, fmt.Errorf("decode a question of the task: %w", err)
			}
			one.Key, one.Optional = string(key), false
			t.Questions[one.Key] = one
		}
	}
	if t.Status == "completed" && err == nil {
		t.Result, err = h.naming(id).taskResult(t.Result)
	}
	return t, err
}

// taskResult makes the result of a task one of a call on this host.
func (n naming) taskResult(raw json.RawMessage) (json.RawMessage, error) {
	if rawjson.Kind(raw) != '{' {
		return nil, fmt.Errorf("the task of package %s has ended without a result", n.id)
	}
	if meta, ok := rawjson.Get(raw, "_meta"); ok && rawjson.Kind(meta) == '{' {
		if _, related := rawjson.Get(meta, relatedTask); related { // the server's own ID means nothing here
			raw = rawjson.Splice(raw, rawjson.Edit{Key: "_meta",
				Value: rawjson.Splice(meta, rawjson.Edit{Key: relatedTask})})
		}
	}
	return n.rewriteURIs(raw, "content", naming.blockHere), nil
}

// AnswerTask answers questions of a task.
func (h *Manager) AnswerTask(
	ctx context.Context, id, task string, answers map[string]tool.Answer, from *Peer,
) error {
	given, err := json.Marshal(answers)
	if err != nil {
		return err
	}
	params := appendMember([]byte{'{'}, "taskId", quote(task))
	params = append(appendMember(params, "inputResponses", given), '}')
	_, err = h.relay(ctx, id, client.Request{
		Method: "tasks/update", Name: task, Params: params, Extensions: tasksExtension,
	}, from)
	return err
}

// CancelTask cancels a task. It waits for the server for a few seconds, also after the end
// of ctx.
func (h *Manager) CancelTask(ctx context.Context, id, task string, from *Peer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), subscribeTime)
	defer cancel()
	p, err := h.findPackage(id)
	if err == nil {
		_, err = p.taskRequest(ctx, "tasks/cancel", task, from)
	}
	return err
}

func (p *managedPackage) taskRequest(ctx context.Context, method, task string, from *Peer) (json.RawMessage, error) {
	return p.relay(ctx, client.Request{
		Method: method, Name: task, Params: append(appendMember([]byte{'{'}, "taskId", quote(task)), '}'),
		Extensions: tasksExtension,
	}, from, true)
}
