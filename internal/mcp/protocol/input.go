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

// requestInput asks the client a round's questions. A modern client gets them as the
// result and retries the call. A legacy client gets one request per question, and the
// next round runs when the last response has arrived. No goroutine waits meanwhile.
func (r *request) requestInput(c *call, res *dispatch.Result) {
	c.recorded, c.state = res.Recorded, res.Input.State
	c.round++
	ref := c.checkInputLimits()
	switch {
	case ref != nil:
		r.sendRefusal(c, ref)
	case !r.rev.Modern():
		r.requestInputLegacy(c, res.Input.Questions)
	case c.useAnswers(res.Input.Questions):
		r.runRound(c)
	default:
		r.inputRequired(c, res.Input.Questions)
	}
}

// checkInputLimits returns a refusal if the call has asked too often or stores too much
// between its rounds.
func (c *call) checkInputLimits() *tool.Refusal {
	if c.round > maxRounds {
		return tool.Refuse(tool.CodeTooManyRounds, "the call asked more than %d times", maxRounds)
	}
	if modulehost.Size(c.recorded) > modulehost.RecordLimit {
		return tool.Refuse(
			tool.CodeTooLarge,
			"a call remembers at most %d bytes between its rounds, answers included",
			modulehost.RecordLimit,
		)
	}
	return nil
}

// useAnswers adds the answers that the client sent before their questions were asked.
// It reports whether there were any for these questions.
func (c *call) useAnswers(qs []tool.Question) bool {
	var found map[string]json.RawMessage
	for _, q := range qs {
		if a, ok := c.unusedAnswers[q.Key]; ok && q.Key != dispatch.ApprovalKey {
			if found == nil {
				found = map[string]json.RawMessage{}
			}
			found[q.Key] = a
			delete(c.unusedAnswers, q.Key)
		}
	}
	c.addAnswers(found)
	return found != nil
}

// addAnswers adds answers to the input of the next round. It copies the map, because
// earlier rounds may still use the old one.
func (c *call) addAnswers(answers map[string]json.RawMessage) {
	if len(answers) == 0 {
		return
	}
	recorded := make(map[string]json.RawMessage, len(c.recorded)+len(answers))
	maps.Copy(recorded, c.recorded)
	maps.Copy(recorded, answers)
	c.recorded = recorded
}

// sendRefusal ends a call with a refusal: a result with isError for tools/call, a JSON-RPC
// error for other methods.
func (r *request) sendRefusal(c *call, ref *tool.Refusal) {
	if c.method != "tools/call" {
		r.sendFault(r.errorFault(c, ref))
		return
	}
	r.sendCallResult(
		c,
		&dispatch.Result{Result: tool.Result{IsError: true, Content: []tool.Content{tool.Text(ref.Text())}}},
	)
}

// resumable reports whether a method may end with input_required.
func resumable(method string) bool {
	return method == "tools/call" || method == "prompts/get" || method == "resources/read"
}

// sealedState is the state that a modern client carries between rounds. It is encrypted and expires,
// and is valid only for the same caller and the same call.
type sealedState struct {
	ID       string                     `json:"i"`
	Round    int                        `json:"n"`
	Asked    []string                   `json:"q"`
	Recorded map[string]json.RawMessage `json:"r,omitempty"`
	State    []byte                     `json:"s,omitempty"`
}

// inputRequired answers with the questions and the sealed state.
func (r *request) inputRequired(c *call, qs []tool.Question) {
	s := sealedState{ID: c.id, Round: c.round, Recorded: c.recorded, State: c.state}
	b := []byte(`{"inputRequests":{`)
	for i, q := range qs {
		s.Asked = append(s.Asked, q.Key)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(rawjson.AppendString(b, q.Key), ':')
		b = appendQuestion(b, r.rev, q)
	}
	plain, err := encodeState(s)
	if err == nil && len(plain) > seal.MaxPlain {
		err = fmt.Errorf("%d bytes are too many", len(plain))
	}
	if err != nil {
		r.sendFault(&Fault{Code: CodeInternal, Message: "the call's state cannot be kept: " + err.Error()})
		return
	}
	token := r.e.opts.Seal.Seal(sealPurpose, r.binding(c), plain, time.Now().Add(r.e.opts.AskFor))
	b = append(b, `},"requestState":`...)
	b = rawjson.AppendString(b, token)
	b = append(b, r.e.envelope("input_required")...)
	r.sendResult(append(b, '}'))
}

// encodeState encodes the values kept between rounds. It does not escape HTML characters, as
// encoding/json would, so that raw JSON stays unchanged.
func encodeState(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// appendQuestion writes one question in the form of the revision.
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
	if rev.Modern() { // the ID of a URL elicitation is the key in this revision
		p = rawjson.Splice(p, rawjson.Edit{Key: "elicitationId"})
	}
	return rawjson.Compact(nil, p)
}

// binding returns the values that a sealed state is bound to: this caller, this call with these
// arguments, and this definition of the tool.
func (r *request) binding(c *call) []byte {
	h := sha256.New()
	for _, part := range []string{r.facts.Own(), c.method, c.name, c.entry.Module, c.entry.Name} {
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

// resume continues a conversation whose client has returned with answers. Without a state it is the
// first round, and answers are kept for the questions that it may ask.
func (r *request) resume(c *call) *Fault {
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
		if c.round == 0 || slices.Contains(c.askedKeys, string(k)) {
			answers[string(k)] = v
		}
	}
	if c.round == 0 {
		c.unusedAnswers = answers
	} else {
		c.addAnswers(answers)
	}
	return nil
}

func (r *request) unseal(c *call, state []byte) *Fault {
	token, ok := rawjson.String(state)
	if !ok {
		return badParam("requestState", "the string that the server sent")
	}
	plain, err := r.e.opts.Seal.OpenWithin(sealPurpose, r.binding(c), token, time.Now(), r.e.opts.AskFor)
	if err != nil {
		return &Fault{
			Status:  400,
			Code:    CodeInvalidParams,
			Message: "params.requestState: " + err.Error() + "; repeat the call without it",
		}
	}
	var s sealedState
	if err := json.Unmarshal(plain, &s); err != nil {
		return &Fault{
			Status:  400,
			Code:    CodeInvalidParams,
			Message: "params.requestState: it was made by another release of this host; repeat the call without it",
		}
	}
	c.id, c.round, c.askedKeys, c.recorded, c.state = s.ID, s.Round, s.Asked, s.Recorded, s.State
	return nil
}
