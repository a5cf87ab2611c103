package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/calls"
	"gatehouse/internal/modules"
	"gatehouse/internal/rawjson"
	"gatehouse/internal/revision"
	"gatehouse/internal/session"
	"gatehouse/tool"
)

// Limits of a conversation.
const (
	maxRounds   = 10
	maxAnswers  = 64 << 10 // bytes of answers in one retry
	sealPurpose = "conversation"
)

// ask puts a round's questions to the client. A modern client gets them as
// the result and retries; to a legacy client they are requests of ours, and
// the round runs again when the last response has come. No goroutine waits.
func (r *request) ask(c *conversation, res *calls.Result) {
	c.id, c.recorded, c.state = res.ID, res.Recorded, res.Input.State
	c.round++
	if c.round > maxRounds {
		r.refuse(c, &tool.Refusal{Code: "too_many_rounds", Message: fmt.Sprintf("the call asked more than %d times", maxRounds)})
		return
	}
	if r.rev.Modern() {
		r.inputRequired(c, res.Input.Questions)
		return
	}
	r.askLegacy(c, res.Input.Questions)
}

// refuse ends a conversation with a refusal, as its method has it.
func (r *request) refuse(c *conversation, ref *tool.Refusal) {
	if c.method != "tools/call" {
		r.fail(r.fault(c, ref))
		return
	}
	r.answer(c, &calls.Result{Result: tool.Result{IsError: true, Content: []tool.Content{tool.Text(ref.Text())}}})
}

// resumable are the methods that may end with input_required.
func resumable(method string) bool {
	return method == "tools/call" || method == "prompts/get" || method == "resources/read"
}

// sealed is what a modern client carries between rounds. It cannot be read,
// changed, kept too long, or used by another caller or for another call.
type sealed struct {
	ID       string                     `json:"i"`
	Round    int                        `json:"n"`
	Asked    []string                   `json:"q"`
	Recorded map[string]json.RawMessage `json:"r,omitempty"`
	State    []byte                     `json:"s,omitempty"`
}

// inputRequired answers with the questions and the sealed state.
func (r *request) inputRequired(c *conversation, qs []tool.Question) {
	s := sealed{ID: c.id, Round: c.round, Recorded: c.recorded, State: c.state}
	b := []byte(`{"inputRequests":{`)
	for i, q := range qs {
		s.Asked = append(s.Asked, q.Key)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(rawjson.AppendString(b, q.Key), ':')
		b = appendQuestion(b, r.rev, q)
	}
	plain, err := encodeKept(s)
	if err != nil {
		r.fail(&Fault{Code: CodeInternal, Message: "the call's state cannot be kept: " + err.Error()})
		return
	}
	token := r.e.opts.Seal.Seal(sealPurpose, r.binding(c), plain, time.Now().Add(r.e.opts.AskFor))
	b = append(b, `},"requestState":`...)
	b = rawjson.AppendString(b, token)
	b = append(b, r.e.envelope("input_required")...)
	r.result(append(b, '}'))
}

// encodeKept encodes what is kept between rounds. Raw JSON in it comes back as
// it was: encoding/json would escape what HTML minds.
func encodeKept(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// appendQuestion writes one question as the revision has it.
func appendQuestion(b []byte, rev revision.Revision, q tool.Question) []byte {
	b = append(b, `{"method":`...)
	b = rawjson.AppendString(b, q.Method)
	b = append(b, `,"params":`...)
	return append(append(b, questionParams(rev, q)...), '}')
}

func questionParams(rev revision.Revision, q tool.Question) []byte {
	p := q.Params
	if len(p) == 0 {
		p = []byte("{}")
	}
	if rev.Modern() { // the id of a URL elicitation is the key there
		p = rawjson.Splice(p, rawjson.Edit{Key: "elicitationId"})
	}
	return rawjson.Compact(nil, p)
}

// binding is what a sealed state is good for: this owner, this call with
// these arguments, this definition of what is called.
func (r *request) binding(c *conversation) []byte {
	h := sha256.New()
	for _, part := range []string{r.facts.Owner, c.method, c.name, c.entry.Module, c.entry.Name} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	digestJSON(h, c.args)
	d := c.entry.Digest()
	h.Write(d[:])
	return h.Sum(nil)
}

// resume takes up a conversation whose client has come back. Without a state
// it is the first round, and whatever answers came along are kept for the
// questions it may ask.
func (r *request) resume(c *conversation) *Fault {
	state, ok := rawjson.Get(r.msg.Params, "requestState")
	if ok {
		if f := r.unseal(c, state); f != nil {
			return f
		}
	}
	answers, ok := rawjson.Get(r.msg.Params, "inputResponses")
	if !ok {
		return nil
	}
	if rawjson.Kind(answers) != '{' {
		return badParam("inputResponses", "an object of answers by key")
	}
	if len(answers) > maxAnswers {
		return badParam("inputResponses", fmt.Sprintf("at most %d bytes", maxAnswers))
	}
	c.recorded = maps.Clone(c.recorded)
	if c.recorded == nil {
		c.recorded = make(map[string]json.RawMessage)
	}
	for k, v := range rawjson.Object(answers) {
		if key := string(k); modules.IsAnswerKey(key) && (c.round == 0 || slices.Contains(c.asked, key)) {
			c.recorded[key] = v
		}
	}
	return nil
}

func (r *request) unseal(c *conversation, state []byte) *Fault {
	token, ok := rawjson.String(state)
	if !ok {
		return badParam("requestState", "the string it was given as")
	}
	plain, err := r.e.opts.Seal.Open(sealPurpose, r.binding(c), token, time.Now())
	if err != nil {
		return &Fault{Status: 400, Code: CodeInvalidParams, Message: "params.requestState: " + err.Error() + "; call again without it"}
	}
	var s sealed
	if err := json.Unmarshal(plain, &s); err != nil {
		return &Fault{Status: 400, Code: CodeInvalidParams, Message: "params.requestState: from another release of this host; call again without it"}
	}
	c.id, c.round, c.asked, c.recorded, c.state = s.ID, s.Round, s.Asked, s.Recorded, s.State
	return nil
}

// gathering collects the responses of a legacy client to one round.
type gathering struct {
	mu      sync.Mutex
	left    int
	answers map[string]json.RawMessage
	failed  error
	settled bool
	timer   *time.Timer
}

// askLegacy sends the questions as requests.
func (r *request) askLegacy(c *conversation, qs []tool.Question) {
	g := &gathering{left: len(qs), answers: map[string]json.RawMessage{}}
	done := func() { r.gathered(c, g) }
	g.timer = time.AfterFunc(r.e.opts.AskFor, func() {
		if g.fail(errors.New("nobody answered in time")) {
			done()
		}
	})
	for _, q := range qs {
		if err := r.put(q, g, done); err != nil {
			if g.fail(err) {
				done()
			}
			return
		}
	}
}

// put sends one question, on the request's own stream if the client reads it,
// else on the session's.
func (r *request) put(q tool.Question, g *gathering, done func()) error {
	id, ok := r.sess.Expect(func(rep session.Reply) {
		if g.take(q.Key, rep) {
			go done() // the goroutine that brought the response has its own work
		}
	})
	if !ok {
		return errors.New("the session has ended")
	}
	msg := appendRequest(nil, id, q.Method, questionParams(r.rev, q))
	if r.sayNow(msg) || r.sess.Queue().Read() && r.sess.Queue().Send(msg) {
		return nil
	}
	r.sess.Forget(id)
	return errors.New("this client reads no stream on which it could be asked; it must accept text/event-stream or open one with GET")
}

// sayNow sends a message before the answer, and reports whether it could.
func (r *request) sayNow(msg []byte) bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	return !r.end.ended && r.sink.Note(msg)
}

// take keeps one response and reports whether it settled the round.
func (g *gathering) take(key string, rep session.Reply) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled {
		return false
	}
	switch {
	case rep.Error != nil:
		g.failed = errors.New("the client answered with an error: " + errorText(rep.Error))
	case rep.Result == nil:
		g.failed = errors.New("the session ended")
	default:
		g.answers[key] = slices.Clone(rep.Result)
		g.left--
	}
	g.settled = g.failed != nil || g.left == 0
	if g.settled {
		g.timer.Stop()
	}
	return g.settled
}

func (g *gathering) fail(err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled {
		return false
	}
	g.failed, g.settled = err, true
	g.timer.Stop()
	return true
}

func errorText(raw []byte) string {
	v, _ := rawjson.Get(raw, "message")
	s, _ := rawjson.String(v)
	return s
}

// gathered runs the next round with the answers, or gives up.
func (r *request) gathered(c *conversation, g *gathering) {
	if r.ended() {
		return
	}
	if g.failed != nil {
		r.refuse(c, &tool.Refusal{Code: "unanswered", Message: g.failed.Error()})
		return
	}
	c.recorded = maps.Clone(c.recorded)
	if c.recorded == nil {
		c.recorded = make(map[string]json.RawMessage)
	}
	for k, a := range g.answers {
		c.recorded[k] = a
	}
	r.run(c)
}
