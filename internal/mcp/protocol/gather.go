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

// gathering collects the responses of a legacy client to one round's
// questions. It is settled once: when all are there, or by the first thing
// that goes wrong.
type gathering struct {
	r *request
	c *conversation

	mu      sync.Mutex
	left    int
	ids     map[string]string // of our requests that have no response yet, by the questions' keys
	answers map[string]json.RawMessage
	settled bool
	without map[string]json.RawMessage // the answers to go on with after a failure; nil if one is needed
	timer   *time.Timer
}

var (
	errNobody   = errors.New("nobody answered in time")
	errDeaf     = errors.New("the client sends no more, so it cannot answer")
	errLeft     = errors.New("the session has ended")
	errNoStream = errors.New("this client reads no stream on which it could be asked; it must accept text/event-stream or open one with GET")
)

// askLegacy sends the questions as requests.
func (r *request) askLegacy(c *conversation, qs []tool.Question) {
	if len(qs) == 0 { // a relay that only wants its state back
		r.e.work.Go(func() { r.goOn(c, nil) })
		return
	}
	g := &gathering{r: r, c: c, left: len(qs), ids: map[string]string{}, answers: map[string]json.RawMessage{}}
	g.mu.Lock()
	g.without = unanswered(qs)
	wait := r.e.opts.AskFor
	if g.without != nil {
		wait = min(wait, optionalWait)
	}
	g.timer = time.AfterFunc(wait, func() { g.fail(errNobody) })
	g.mu.Unlock()
	r.onClose(func() { g.settle() })
	for _, q := range qs {
		if err := g.put(q); err != nil {
			g.fail(err)
			return
		}
	}
	r.park(func() { g.fail(errDeaf) })
}

// optionalWait is how long a call waits for answers that it can do without.
const optionalWait = 10 * time.Second

// unanswered returns the answers with which a call goes on that got none; nil
// if one of the questions needs an answer.
func unanswered(qs []tool.Question) map[string]json.RawMessage {
	none := map[string]json.RawMessage{}
	for _, q := range qs {
		if !q.Optional {
			return nil
		}
		none[q.Key] = json.RawMessage("null")
	}
	return none
}

// put sends one question.
func (g *gathering) put(q tool.Question) error {
	s := g.r.sess
	id, ok := s.Expect(func(rep session.Reply) { g.take(q.Key, rep) })
	if !ok {
		return errLeft
	}
	g.mu.Lock()
	settled := g.settled
	if !settled {
		g.ids[q.Key] = id
	}
	g.mu.Unlock()
	if settled {
		s.Forget(id)
		return nil
	}
	if !g.r.say(appendRequest(nil, id, q.Method, questionParams(g.r.rev, q))) {
		return errNoStream
	}
	return nil
}

// say sends a message on the request's own stream if the client reads it,
// else on the session's, and reports whether it could.
func (r *request) say(msg []byte) bool {
	return r.sayNow(msg) || r.sess.Queue().Read() && r.sess.Queue().Send(msg)
}

// sayNow sends a message before the answer, and reports whether it could.
func (r *request) sayNow(msg []byte) bool {
	r.end.mu.Lock()
	defer r.end.mu.Unlock()
	return !r.end.ended && r.sink.Note(msg)
}

// take takes one response.
func (g *gathering) take(key string, rep session.Reply) {
	g.mu.Lock()
	delete(g.ids, key)
	g.mu.Unlock()
	switch {
	case rep.Error != nil:
		g.fail(errors.New("the client answered with an error: " + errorText(rep.Error)))
		return
	case rep.Result == nil:
		g.fail(errLeft)
		return
	}
	g.mu.Lock()
	g.answers[key] = slices.Clone(rep.Result)
	g.left--
	all := g.left == 0
	g.mu.Unlock()
	if all && g.settle() {
		// The goroutine that brought the response has its own work.
		g.r.e.work.Go(func() { g.r.goOn(g.c, g.answers) })
	}
}

// fail gives up on the round.
func (g *gathering) fail(why error) {
	g.mu.Lock()
	open := g.ids
	g.ids = nil
	g.mu.Unlock()
	if !g.settle() {
		return
	}
	for _, id := range slices.Sorted(maps.Values(open)) {
		g.r.sess.Forget(id)
		g.r.sayNow(appendNote(nil, "notifications/cancelled", withdrawn(id, why)))
	}
	if g.without != nil && why != errLeft {
		g.r.e.work.Go(func() { g.r.goOn(g.c, g.without) })
		return
	}
	g.r.e.work.Go(func() { g.r.refuse(g.c, &tool.Refusal{Code: "unanswered", Message: why.Error()}) })
}

// withdrawn makes the params with which we take a question back.
func withdrawn(id string, why error) []byte {
	b := rawjson.AppendString([]byte(`{"requestId":`), id)
	b = rawjson.AppendString(append(b, `,"reason":`...), why.Error())
	return append(b, '}')
}

// settle reports whether it was the first to do so. Responses that still come
// are ignored.
func (g *gathering) settle() bool {
	g.mu.Lock()
	first, open := !g.settled, g.ids
	g.settled, g.ids = true, nil
	g.timer.Stop()
	g.mu.Unlock()
	for _, id := range open {
		g.r.sess.Forget(id)
	}
	return first
}

// errorText is what a client's error response says.
func errorText(raw []byte) string {
	v, _ := rawjson.Get(raw, "message")
	s, _ := rawjson.String(v)
	return s
}

// goOn runs the next round with the answers.
func (r *request) goOn(c *conversation, answers map[string]json.RawMessage) {
	if r.ended() {
		return
	}
	r.unpark()
	c.record(answers)
	r.run(c)
}
