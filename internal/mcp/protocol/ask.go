package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/seal"
	"gatehouse/tool"
)

// Limits of a conversation.
const (
	maxRounds   = 10
	maxAnswers  = 64 << 10 // bytes of answers in one message
	sealPurpose = "conversation"
)

// ask puts a round's questions to the client. A modern client gets them as
// the result and retries; to a legacy client they are requests of ours, and
// the round runs again when the last response has come. No goroutine waits.
func (r *request) ask(c *conversation, res *dispatch.Result) {
	c.recorded, c.state = res.Recorded, res.Input.State
	c.round++
	ref := c.overdrawn()
	switch {
	case ref != nil:
		r.refuse(c, ref)
	case !r.rev.Modern():
		r.askLegacy(c, res.Input.Questions)
	case c.answered(res.Input.Questions):
		r.run(c)
	default:
		r.inputRequired(c, res.Input.Questions)
	}
}

// overdrawn refuses to go on with a call that asks or remembers too much.
func (c *conversation) overdrawn() *tool.Refusal {
	if c.round > maxRounds {
		return tool.Refuse("too_many_rounds", "the call asked more than %d times", maxRounds)
	}
	if modulehost.Size(c.recorded) > modulehost.RecordLimit {
		return tool.Refuse("too_large", "a call remembers at most %d bytes between its rounds, answers included", modulehost.RecordLimit)
	}
	return nil
}

// answered takes up the answers that came along unasked, and reports whether
// there were any to these questions.
func (c *conversation) answered(qs []tool.Question) bool {
	var found map[string]json.RawMessage
	for _, q := range qs {
		if a, ok := c.offered[q.Key]; ok && q.Key != dispatch.ApprovalKey {
			if found == nil {
				found = map[string]json.RawMessage{}
			}
			found[q.Key] = a
			delete(c.offered, q.Key)
		}
	}
	c.record(found)
	return found != nil
}

// record adds to what the next round is given. Earlier rounds may still hold
// the map they were given.
func (c *conversation) record(answers map[string]json.RawMessage) {
	if len(answers) == 0 {
		return
	}
	recorded := make(map[string]json.RawMessage, len(c.recorded)+len(answers))
	maps.Copy(recorded, c.recorded)
	maps.Copy(recorded, answers)
	c.recorded = recorded
}

// refuse ends a conversation with a refusal, as its method has it.
func (r *request) refuse(c *conversation, ref *tool.Refusal) {
	if c.method != "tools/call" {
		r.fail(r.fault(c, ref))
		return
	}
	r.answer(c, &dispatch.Result{Result: tool.Result{IsError: true, Content: []tool.Content{tool.Text(ref.Text())}}})
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
	if err == nil && len(plain) > seal.MaxPlain {
		err = fmt.Errorf("%d bytes are too many", len(plain))
	}
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
func appendQuestion(b []byte, rev mcpversion.Revision, q tool.Question) []byte {
	b = append(b, `{"method":`...)
	b = rawjson.AppendString(b, q.Method)
	b = append(b, `,"params":`...)
	return append(append(b, questionParams(rev, q)...), '}')
}

func questionParams(rev mcpversion.Revision, q tool.Question) []byte {
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
	if len(c.args) == 0 {
		digestJSON(h, []byte("{}"))
	} else {
		digestJSON(h, c.args)
	}
	d := c.entry.Digest()
	h.Write(d[:])
	return h.Sum(nil)
}

// resume takes up a conversation whose client has come back. Without a state
// it is the first round, and whatever answers came along are kept for the
// questions it may ask.
func (r *request) resume(c *conversation) *Fault {
	if state := r.msg.has.of().requestState; state != nil {
		if f := r.unseal(c, state); f != nil {
			return f
		}
	}
	raw := r.msg.has.of().inputResponses
	if raw == nil {
		return nil
	}
	if rawjson.Kind(raw) != '{' || len(raw) > maxAnswers {
		return badParam("inputResponses", fmt.Sprintf("an object of answers by key, at most %d bytes", maxAnswers))
	}
	answers := make(map[string]json.RawMessage)
	for k, v := range rawjson.Object(raw) {
		if c.round == 0 || slices.Contains(c.asked, string(k)) {
			answers[string(k)] = v
		}
	}
	if c.round == 0 {
		c.offered = answers
	} else {
		c.record(answers)
	}
	return nil
}

func (r *request) unseal(c *conversation, state []byte) *Fault {
	token, ok := rawjson.String(state)
	if !ok {
		return badParam("requestState", "the string it was given as")
	}
	plain, err := r.e.opts.Seal.OpenWithin(sealPurpose, r.binding(c), token, time.Now(), r.e.opts.AskFor)
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
