package modulehost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/schema"
	"gatehouse/tool"
)

// These are the limits of a call with several rounds.
const (
	RecordLimit = 16 << 10 // bytes of answers and recorded values
	valueKey    = "="      // prefix of the keys of recorded values; answers have their questions' keys
)

// IsAnswerKey reports whether a client may send an answer under this key: questions cannot have the keys of a
// handler's recorded values.
func IsAnswerKey(key string) bool { return key != "" && !strings.HasPrefix(key, valueKey) }

// running is one call while its handler runs: the call, and the peer behind it.
type running struct {
	call  tool.Call
	host  *Host
	req   *bus.Request
	notes bus.Notes

	narrowed any // how it was narrowed, for the calls and jobs that it makes

	mu       sync.Mutex
	recorded map[string]json.RawMessage // grows; the request's own map is not changed
	owned    bool                       // recorded is a copy that this call may change
	// recorded earlier and not yet requested again: while there are any, notes are replays
	unseen map[string]bool
	asked  []tool.Question
	jobs   []string // jobs that the handler has started
	ended  bool

	restartable bool     // the jobs that it starts may run again on another node; guarded by mu
	again       *restart // the handler runs because a job runs again; nil otherwise
}

func newRunning(h *Host, r *bus.Request, n bus.Notes) *running {
	rc := &running{host: h, req: r, notes: n, recorded: r.Recorded}
	if len(r.Recorded) > 0 {
		rc.unseen = make(map[string]bool, len(r.Recorded))
		for k := range r.Recorded {
			rc.unseen[k] = true
		}
	}
	rc.call = tool.Call{
		ID: r.Call, Method: r.Method, Name: r.Name, Args: r.Args, Params: r.Params,
		State: r.State, Caller: *r.Caller, Roots: h.rootsOf(*r.Caller), Peer: rc,
		Unpaged: r.Unpaged, Forward: r.Forward, Logs: r.Logs, Task: r.Task,
	}
	if len(r.State) > 0 {
		rc.call.Answers = answersOf(r.Recorded)
		rc.unseen = nil // the handler goes on from its state, so it repeats nothing
	}
	return rc
}

// answersOf returns the answers of a client among recorded values.
func answersOf(recorded map[string]json.RawMessage) map[string]tool.Answer {
	all := map[string]tool.Answer{}
	for k, v := range recorded {
		if IsAnswerKey(k) {
			all[k] = v
		}
	}
	return all
}

// dropKeys drops recorded answers that the handler needs no more. rc.mu must be held.
func (rc *running) dropKeys(keys []string) {
	if len(keys) == 0 {
		return
	}
	kept := maps.Clone(rc.recorded)
	for _, k := range keys {
		if IsAnswerKey(k) {
			delete(kept, k)
		}
	}
	rc.recorded, rc.owned = kept, true
}

// endCall disconnects the peer, because the handler has returned and goroutines that it left must not report to a
// call that has ended.
func (rc *running) endCall() {
	rc.mu.Lock()
	rc.ended = true
	rc.mu.Unlock()
}

// isDetached reports whether notes are discarded: after the end, and while a further round repeats what an earlier
// one has already reported.
func (rc *running) isDetached() bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.ended || len(rc.unseen) > 0
}

func (rc *running) Progress(done, total float64, note string) {
	if rc.notes != nil && !rc.isDetached() {
		rc.notes.Progress(done, total, note)
	}
}

func (rc *running) Log(level slog.Level, data any) {
	if rc.notes == nil || rc.isDetached() {
		return
	}
	if m, ok := data.(tool.LogMessage); ok {
		rc.notes.Log(level, json.RawMessage(m))
		return
	}
	b, err := json.Marshal(data)
	if err != nil {
		b, _ = json.Marshal(err.Error())
	}
	rc.notes.Log(level, append(append([]byte(`{"data":`), b...), '}'))
}

func (rc *running) Detach(context.Context) {
	if rc.notes != nil && !rc.isDetached() {
		rc.notes.Detach()
	}
}

// Keep implements tool.Keep.
func (rc *running) Keep() bool {
	rc.mu.Lock()
	ended := rc.ended
	recorded := make(map[string]json.RawMessage, len(rc.recorded))
	maps.Copy(recorded, rc.recorded)
	rc.mu.Unlock()
	return rc.notes != nil && !ended && rc.notes.Keep(recorded)
}

func (rc *running) Output() io.Writer { return outputWriter{rc} }

type outputWriter struct{ rc *running }

func (w outputWriter) Write(p []byte) (int, error) {
	if w.rc.notes != nil && !w.rc.isDetached() {
		w.rc.notes.Output(p)
	}
	return len(p), nil
}

func (rc *running) Ask(qs ...tool.Question) (map[string]tool.Answer, error) {
	if err := checkAbilities(rc.req.Caller.Can, qs); err != nil {
		return nil, err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.ended {
		return nil, errors.New("ask: the call has ended")
	}
	answers := make(map[string]tool.Answer, len(qs))
	missing := false
	for _, q := range qs {
		if !IsAnswerKey(q.Key) {
			return nil, fmt.Errorf("ask: %q cannot be a question's key", q.Key)
		}
		a, ok := rc.recorded[q.Key]
		delete(rc.unseen, q.Key)
		if ok && answerFits(q, a) {
			answers[q.Key] = a
			continue
		}
		missing = true
		if !slices.ContainsFunc(rc.asked, func(p tool.Question) bool { return p.Key == q.Key }) {
			rc.asked = append(rc.asked, q)
		}
	}
	if missing {
		return nil, tool.ErrAsked
	}
	return answers, nil
}

func (rc *running) Recall(key string) (json.RawMessage, bool) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	v, ok := rc.recorded[valueKey+key]
	delete(rc.unseen, valueKey+key)
	return v, ok
}

func (rc *running) Record(key string, v any) error {
	if strings.HasPrefix(key, valueKey) {
		return fmt.Errorf("record: %q is reserved for the host", key)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.owned {
		rc.recorded, rc.owned = maps.Clone(rc.recorded), true
		if rc.recorded == nil {
			rc.recorded = make(map[string]json.RawMessage)
		}
	}
	rc.recorded[valueKey+key] = b
	if Size(rc.recorded) > RecordLimit {
		delete(rc.recorded, valueKey+key)
		return tool.Refuse(tool.CodeTooLarge, "a call remembers at most %d bytes between its rounds", RecordLimit)
	}
	return nil
}

// Size returns what recorded values count against RecordLimit, in bytes.
func Size(m map[string]json.RawMessage) (n int) {
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

// started records a job that the handler has started.
func (rc *running) started(job string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.jobs = append(rc.jobs, job)
}

// JobMeta is the member of a result's _meta that names the job in which its call continues, for clients that
// follow it.
const JobMeta = "gatehouse/job"

// marked adds the job's id to a successful result, if there is exactly one job. rc.mu must be held. The result of
// a relay is not changed.
func (rc *running) marked(res tool.Result) tool.Result {
	if len(rc.jobs) != 1 || res.Raw != nil || res.IsError {
		return res
	}
	id, _ := json.Marshal(rc.jobs[0]) // a string: it cannot fail
	res.Meta = maps.Clone(res.Meta)
	if res.Meta == nil {
		res.Meta = map[string]json.RawMessage{}
	}
	res.Meta[JobMeta] = id
	return res
}

// outcome returns what is sent over the bus. An unanswered question overrides what the handler returned.
func (rc *running) outcome(res tool.Result, err error) (bus.Outcome, error) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if len(rc.asked) > 0 {
		in := &tool.Input{Questions: rc.asked}
		if res.Input != nil {
			in.State, in.Here = res.Input.State, res.Input.Here
		}
		return bus.Outcome{Result: tool.Result{Input: in}, Recorded: rc.recorded}, nil
	}
	if errors.Is(err, tool.ErrAsked) {
		return bus.Outcome{}, errors.New("the handler returned ErrAsked without having asked")
	}
	if err != nil {
		return bus.Outcome{}, err
	}
	out := bus.Outcome{Result: rc.marked(res)}
	if res.Input != nil {
		rc.dropKeys(res.Input.Forget)
		out.Recorded = rc.recorded
	}
	return out, nil
}

// checkAbilities checks that the client has declared that it can answer each of the questions.
func checkAbilities(can tool.Abilities, qs []tool.Question) error {
	for _, q := range qs {
		need, name := q.Needs()
		if can&need != need {
			return &tool.WireError{
				Code:    CodeMissingAbility,
				Message: "this needs a client that can answer " + q.Method + "; it declared no such capability",
				Data:    json.RawMessage(`{"requiredCapabilities":` + name + `}`),
			}
		}
	}
	return nil
}

// CodeMissingAbility is the protocol's error code for a request that needs a capability the client did not declare
// (2026-07-28).
const CodeMissingAbility = -32021

// answerFits checks an answer against its question. An answer that does not fit is ignored, and the question is
// asked again.
func answerFits(q tool.Question, a json.RawMessage) bool {
	if q.Optional && string(a) == "null" {
		return true
	}
	switch q.Method {
	case "elicitation/create":
		return fitsForm(q.Params, a)
	case "sampling/createMessage":
		var r struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		return json.Unmarshal(a, &r) == nil && r.Role != "" && len(r.Content) > 0
	case "roots/list":
		var r struct {
			Roots []struct {
				URI string `json:"uri"`
			} `json:"roots"`
		}
		return json.Unmarshal(a, &r) == nil && r.Roots != nil
	}
	return true
}

func fitsForm(params, a json.RawMessage) bool {
	var p struct {
		Schema json.RawMessage `json:"requestedSchema"`
	}
	var r struct {
		Action  string          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(params, &p) != nil || json.Unmarshal(a, &r) != nil {
		return false
	}
	switch r.Action {
	case "decline", "cancel":
		return true
	case "accept":
		if p.Schema == nil {
			return true
		}
		// An invalid form is an error of its author, which asking again would not correct.
		_, wrong := errors.AsType[*schema.Mismatch](schema.CheckForm(p.Schema, r.Content))
		return !wrong
	}
	return false
}

// noRoots is the roots of a host that gives its modules no folders.
type noRoots struct{}

func (noRoots) Resolve(string) (*os.Root, string, error) {
	return nil, "", tool.Refuse(tool.CodeOutsideRoot, "this host opens no folders")
}
func (noRoots) List() []tool.Root { return nil }
