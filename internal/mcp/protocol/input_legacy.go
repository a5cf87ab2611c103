package protocol

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// inputGroup collects a legacy client's responses to the questions of one round. It
// finishes once: when all responses have arrived, or at the first failure.
type inputGroup struct {
	r *request
	c *call

	mu        sync.Mutex
	remaining int
	ids       map[string]string // IDs of requests without a response yet, by the questions' keys
	answers   map[string]json.RawMessage
	finished  bool
	fallback  map[string]json.RawMessage // the answers used after a failure; nil if a question is not optional
	timer     *time.Timer
}

var (
	errNoAnswer     = errors.New("no answer arrived in time")
	errInputClosed  = errors.New("the client has closed its input, so it cannot answer")
	errSessionEnded = errors.New("the session has ended")
	errNoStream     = errors.New("the client reads no stream on which it can get requests; " +
		"it must accept text/event-stream or open a stream with GET")
)

// requestInputLegacy sends the questions as requests to the client.
func (r *request) requestInputLegacy(c *call, qs []tool.Question) {
	if len(qs) == 0 { // the handler only asks to run again with its state
		r.e.work.Go(func() { r.continueCall(c, nil) })
		return
	}
	g := &inputGroup{r: r, c: c, remaining: len(qs), ids: map[string]string{}, answers: map[string]json.RawMessage{}}
	g.mu.Lock()
	g.fallback = emptyAnswers(qs)
	wait := r.e.opts.AskFor
	if g.fallback != nil {
		wait = min(wait, optionalWait)
	}
	g.timer = time.AfterFunc(wait, func() { g.failGroup(errNoAnswer) })
	g.mu.Unlock()
	r.onRelease(func() { g.finishGroup() })
	for _, q := range qs {
		if err := g.sendQuestion(q); err != nil {
			g.failGroup(err)
			return
		}
	}
	r.park(func() { g.failGroup(errInputClosed) })
}

// optionalWait is how long a call waits for answers to optional questions.
const optionalWait = 10 * time.Second

// emptyAnswers returns null answers for the questions, with which a call continues if
// the client does not answer. It returns nil if a question is not optional.
func emptyAnswers(qs []tool.Question) map[string]json.RawMessage {
	none := map[string]json.RawMessage{}
	for _, q := range qs {
		if !q.Optional {
			return nil
		}
		none[q.Key] = json.RawMessage("null")
	}
	return none
}

// sendQuestion sends one question to the client.
func (g *inputGroup) sendQuestion(q tool.Question) error {
	s := g.r.sess
	id, ok := s.Expect(func(rep session.Reply) { g.receive(q.Key, rep) })
	if !ok {
		return errSessionEnded
	}
	g.mu.Lock()
	settled := g.finished
	if !settled {
		g.ids[q.Key] = id
	}
	g.mu.Unlock()
	if settled {
		s.ForgetExpected(id)
		return nil
	}
	if !g.r.sendRequest(appendRequest(nil, id, q.Method, questionParams(g.r.rev, q))) {
		return errNoStream
	}
	return nil
}

// sendRequest sends a message on the request's own stream if the client reads it,
// otherwise on the session's stream. It returns false if the client reads neither.
func (r *request) sendRequest(msg []byte) bool {
	return r.sendBeforeAnswer(msg) || r.sess.Queue().Read() && r.sess.Queue().Send(msg)
}

// sendBeforeAnswer sends a message before the answer. It returns false if the request
// has ended or the client accepts no message before the answer.
func (r *request) sendBeforeAnswer(msg []byte) bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	return !r.end.ended && r.sink.Note(msg)
}

// receive handles one response.
func (g *inputGroup) receive(key string, rep session.Reply) {
	g.mu.Lock()
	delete(g.ids, key)
	g.mu.Unlock()
	switch {
	case rep.Error != nil:
		g.failGroup(errors.New("the client answered with an error: " + errorText(rep.Error)))
		return
	case rep.Result == nil:
		g.failGroup(errSessionEnded)
		return
	}
	g.mu.Lock()
	g.answers[key] = slices.Clone(rep.Result)
	g.remaining--
	all := g.remaining == 0
	g.mu.Unlock()
	if all && g.finishGroup() {
		// On a new goroutine, because this one reads the client's messages.
		g.r.e.work.Go(func() { g.r.continueCall(g.c, g.answers) })
	}
}

// failGroup ends the round: with the fallback answers if all questions are optional,
// otherwise with a refusal.
func (g *inputGroup) failGroup(why error) {
	g.mu.Lock()
	open := g.ids
	g.ids = nil
	g.mu.Unlock()
	if !g.finishGroup() {
		return
	}
	for _, id := range slices.Sorted(maps.Values(open)) {
		g.r.sess.ForgetExpected(id)
		g.r.sendBeforeAnswer(appendNote(nil, "notifications/cancelled", cancelledParams(id, why)))
	}
	if g.fallback != nil && why != errSessionEnded {
		g.r.e.work.Go(func() { g.r.continueCall(g.c, g.fallback) })
		return
	}
	g.r.e.work.Go(func() { g.r.sendRefusal(g.c, &tool.Refusal{Code: tool.CodeUnanswered, Message: why.Error()}) })
}

// cancelledParams returns the params of the notification that cancels a question.
func cancelledParams(id string, why error) []byte {
	b := rawjson.AppendString([]byte(`{"requestId":`), id)
	b = rawjson.AppendString(append(b, `,"reason":`...), why.Error())
	return append(b, '}')
}

// finishGroup marks the group as finished; only the first call returns true. Later responses
// are ignored.
func (g *inputGroup) finishGroup() bool {
	g.mu.Lock()
	first, open := !g.finished, g.ids
	g.finished, g.ids = true, nil
	g.timer.Stop()
	g.mu.Unlock()
	for _, id := range open {
		g.r.sess.ForgetExpected(id)
	}
	return first
}

// errorText returns the message of a client's error response.
func errorText(raw []byte) string {
	v, _ := rawjson.Get(raw, "message")
	s, _ := rawjson.String(v)
	return s
}

// continueCall runs the next round with the answers.
func (r *request) continueCall(c *call, answers map[string]json.RawMessage) {
	if r.ended() {
		return
	}
	r.unpark()
	c.addAnswers(answers)
	r.runRound(c)
}
