package packages

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	maxQuestion  = 256 << 10       // bytes of the params of one question of a server
	keptOutcome  = time.Minute     // for a retry that is sent again
	keptBytes    = 64 << 20        // of the results of all calls that are kept for such retries
	expiryPause  = 2 * time.Second // between the answer cancel and the cancellation of an expired call
	outcomeBytes = 1 << 10         // what an outcome costs besides its result
)

// InputRequired is the error of a request whose server asks the caller something. The
// request is continued by another with the state of Input and the answers.
type InputRequired struct{ Input tool.Input }

func (e *InputRequired) Error() string { return "the server asks its caller" }

// relayState is what a caller carries between the rounds of a request; the protocol's
// engine seals it. A legacy server's call stays open on one node; a modern one's state is
// its own.
type relayState struct {
	Node  string `json:"node,omitempty"`
	Call  string `json:"call,omitempty"`  // the handle of an open call
	Asked int    `json:"asked,omitempty"` // the question that was asked last

	Login  string          `json:"login,omitempty"`  // the login that the caller was sent to
	Before json.RawMessage `json:"before,omitempty"` // the state before that

	Modern bool              `json:"modern,omitempty"`
	State  json.RawMessage   `json:"state,omitempty"` // requestState of a modern server, a JSON string
	Keys   map[string]string `json:"keys,omitempty"`  // our keys of its questions, by its own
}

func (s relayState) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("packages: " + err.Error()) // strings, numbers and checked JSON
	}
	return b
}

// callTable holds the open calls whose servers have asked. It is safe for concurrent use.
type callTable struct {
	node   string
	wait   time.Duration // for the answer to a question
	parked *limit.Shares // of open calls that have asked
	kept   *limit.Shares // of bytes of outcomes that may be requested again

	mu    sync.Mutex
	calls map[string]*openCall // by handle
}

func newCallTable(parked int, wait time.Duration) *callTable {
	return &callTable{
		node: rand.Text()[:8], wait: wait,
		parked: limit.NewShares(limit.Resource{Name: "calls that wait for an answer", Total: int64(parked)}),
		kept:   limit.NewShares(limit.Resource{Name: "bytes of results that are kept", Total: keptBytes}),
		calls:  map[string]*openCall{},
	}
}

// errExpired is the outcome of a call whose question was not answered in time.
func errExpired(what, why string) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeTimeout,
		Message: fmt.Sprintf("the question of %s has expired: %s; it may have run", what, why),
		Next:    "Check the outcome before you call it again.",
	}
}

// findCall returns the open call that a state names, which must be the caller's own.
func (t *callTable) findCall(s relayState, owner, what string) (*openCall, error) {
	t.mu.Lock()
	c := t.calls[s.Call]
	t.mu.Unlock()
	if s.Node != t.node || c == nil || c.owner != owner || c.what != what {
		return nil, errExpired(what, "this host does not have the call any more")
	}
	return c, nil
}

func (t *callTable) addCall(c *openCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[c.handle] = c
}

// retainCall keeps the outcome of a call for a while, if there is space.
func (t *callTable) retainCall(c *openCall, bytes int) {
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.calls, c.handle)
	}
	held, err := t.kept.Claim(limit.Holder{Principal: c.principal}, int64(bytes+outcomeBytes))
	if err != nil {
		forget()
		return
	}
	time.AfterFunc(keptOutcome, func() {
		forget()
		held.Release()
	})
}

// openCall is a request to a legacy server that may ask its caller while it runs. While a
// question is open, no handler waits: the caller's next request attaches to the call. It
// is safe for concurrent use.
type openCall struct {
	pkg              *managedPackage
	handle           string
	owner, principal string
	session          string // its caller's; see Peer.connection
	what             string // package, method and name
	can              tool.Abilities
	cancel           context.CancelCauseFunc

	asking chan struct{} // holds one while a question is open

	mu       sync.Mutex
	roots    string // the caller's answer to roots/list; "" if it is not known
	progress func(done, total float64, note string)
	log      func(slog.Level, tool.LogMessage)
	waiters  int
	waiting  bool // for the caller's answer
	expired  string
	ended    bool
	held     limit.Held
	steps    []*callStep
}

// callStep is what a call did between two answers of its caller. It ends with a question
// or with the outcome of the call, which are set before done is closed.
type callStep struct {
	done     chan struct{}
	question *tool.Question
	answer   chan json.RawMessage // holds one
	answered bool
	raw      json.RawMessage
	err      error
}

// startCall sends a request that may ask, on a goroutine that outlives the caller's, and
// returns the call. send returns the outcome.
func (p *managedPackage) startCall(
	from *Peer, what string, roots string, send func(context.Context, *openCall) (json.RawMessage, error),
) (*openCall, error) {
	leave, err := p.manager.addWork()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(p.manager.ctx)
	c := &openCall{
		pkg: p, handle: rand.Text(), owner: ownerOf(from.Caller), principal: from.Caller.Principal, what: what,
		session: from.connection(),
		can:     from.can(), roots: roots, cancel: cancel, asking: make(chan struct{}, 1), progress: from.Progress,
		log: from.Log, steps: []*callStep{{done: make(chan struct{})}},
	}
	go func() {
		defer leave()
		defer cancel(nil)
		c.finish(send(ctx, c))
	}()
	return c, nil
}

// reportProgress passes progress on to the handler that waits for the call; without one it is
// dropped.
func (c *openCall) reportProgress(params json.RawMessage) {
	c.mu.Lock()
	report := c.progress
	c.mu.Unlock()
	if f := progressOf(report); f != nil {
		f(params)
	}
}

// logMessage passes a log message on to the handler that waits for the call; without one it
// is dropped.
func (c *openCall) logMessage(level slog.Level, params tool.LogMessage) {
	c.mu.Lock()
	log := c.log
	c.mu.Unlock()
	if log != nil {
		log(level, params)
	}
}

func (c *openCall) isWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// finish sets the outcome of the call.
func (c *openCall) finish(raw json.RawMessage, err error) {
	c.mu.Lock()
	if c.waiting && c.expired == "" {
		c.expired = "the server ended the call before the answer came"
		if err != nil {
			c.expired += fmt.Sprintf(" (%s)", shorten(err.Error(), publicText))
		}
	}
	if c.expired != "" {
		raw, err = nil, errExpired(c.what, c.expired)
	}
	c.ended = true
	last := c.steps[len(c.steps)-1]
	last.raw, last.err = raw, err
	close(last.done)
	asked := len(c.steps) > 1
	c.held.Release()
	c.mu.Unlock()
	if asked {
		c.pkg.manager.calls.retainCall(c, len(raw))
	}
}

// askCaller asks the caller of the call and waits for the answer. A server's questions are asked
// one after the other.
func (c *openCall) askCaller(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *client.RPCError) {
	q := &tool.Question{Method: method, Params: params}
	switch need, _ := q.Needs(); {
	case need == 0:
		return nil, &client.RPCError{Code: -32601, Message: "this client does not know " + shorten(method, 100)}
	case c.can&need != need:
		return nil, &client.RPCError{Code: -32602, Message: "this client has not declared that it can answer this"}
	case len(params) > maxQuestion:
		return nil, &client.RPCError{
			Code: -32602, Message: fmt.Sprintf("the question has %d bytes; at most %d are passed on", len(params),
				maxQuestion),
		}
	}
	withdrawn := &client.RPCError{Code: -32800, Message: "the call has ended"}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return nil, withdrawn
	}
	c.mu.Lock()
	if method == "roots/list" && c.roots != "" {
		defer c.mu.Unlock()
		return json.RawMessage(c.roots), nil
	}
	if c.ended || c.expired != "" {
		defer c.mu.Unlock()
		return nil, withdrawn
	}
	if mode, _ := stringMember(params, "mode"); mode == "url" {
		c.pkg.manager.visits.asked(c.pkg.id, c.session, params)
	}
	cur, err := c.park(q)
	c.mu.Unlock()
	if err != nil {
		c.cancel(err)
		return cancelled(method)
	}
	c.pkg.mu.Lock()
	c.pkg.asksRoots = c.pkg.asksRoots || method == "roots/list"
	c.pkg.signalChange() // other calls need not wait for this one
	c.pkg.mu.Unlock()
	return c.awaitAnswer(ctx, cur)
}

// park ends the present step with a question; c.mu is held.
func (c *openCall) park(q *tool.Question) (*callStep, error) {
	t := c.pkg.manager.calls
	if len(c.steps) == 1 {
		held, err := t.parked.Claim(limit.Holder{Principal: c.principal}, 1)
		if err != nil {
			return nil, &tool.Refusal{
				Code:    tool.CodeBusy,
				Message: fmt.Sprintf("the question of %s cannot be asked: %v; it may have run", c.what, err),
				Next:    "Answer the questions that are open, and check the outcome before you call it again.",
			}
		}
		c.held = held
		t.addCall(c)
	}
	q.Key = fmt.Sprintf("relay-%d", len(c.steps))
	if q.Method == "roots/list" {
		q.Key = clientroots.AnnouncedKey // whose answer other parts of the host use too
	}
	cur := c.steps[len(c.steps)-1]
	cur.question, cur.answer = q, make(chan json.RawMessage, 1)
	c.steps = append(c.steps, &callStep{done: make(chan struct{})})
	c.waiting = true
	close(cur.done)
	return cur, nil
}

// awaitAnswer waits for the answer to a question. One that does not come in time is
// answered with cancel, and the call is cancelled.
func (c *openCall) awaitAnswer(ctx context.Context, cur *callStep) (json.RawMessage, *client.RPCError) {
	late := time.NewTimer(c.pkg.manager.calls.wait)
	defer late.Stop()
	select {
	case a := <-cur.answer:
		return a, nil
	case <-ctx.Done():
		return nil, &client.RPCError{Code: -32800, Message: "the question was withdrawn"} // nobody reads it
	case <-late.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur.answered {
		return <-cur.answer, nil
	}
	c.expired = fmt.Sprintf("it was not answered within %v", c.pkg.manager.calls.wait)
	time.AfterFunc(expiryPause, func() { c.cancel(errExpired(c.what, c.expired)) })
	return cancelled(cur.question.Method)
}

// cancelled is the answer of a user who does not answer.
func cancelled(method string) (json.RawMessage, *client.RPCError) {
	if method == "elicitation/create" {
		return json.RawMessage(`{"action":"cancel"}`), nil
	}
	return nil, &client.RPCError{Code: -1, Message: "the user did not answer"}
}

// attach continues a call with the answers of its caller, to the question that was asked
// last when the caller got its state. The answer is passed on once; a retry that is sent
// again gets the same outcome.
func (c *openCall) attach(ctx context.Context, asked int, from *Peer) (json.RawMessage, error) {
	c.mu.Lock()
	if asked < 0 || asked+1 >= len(c.steps) {
		c.mu.Unlock()
		return nil, errExpired(c.what, "it did not ask that")
	}
	cur := c.steps[asked]
	if a, ok := from.Answers[cur.question.Key]; ok && !cur.answered {
		cur.answered, c.waiting = true, false
		if cur.question.Method == "roots/list" {
			c.roots = string(a)
		}
		cur.answer <- a
	}
	answered := cur.answered
	c.mu.Unlock()
	if !answered {
		return nil, c.required(asked)
	}
	return c.awaitStep(ctx, asked+1, from)
}

// awaitStep waits for the end of a step. If no caller waits any more, the call is cancelled.
func (c *openCall) awaitStep(ctx context.Context, n int, from *Peer) (json.RawMessage, error) {
	c.mu.Lock()
	s := c.steps[n]
	c.progress, c.log = from.Progress, from.Log
	c.waiters++
	c.mu.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	c.mu.Lock()
	c.waiters--
	last := c.waiters == 0
	if last {
		c.progress, c.log = nil, nil
	}
	c.mu.Unlock()
	select {
	case <-s.done:
	default:
		if last {
			c.cancel(context.Cause(ctx))
		}
		return nil, context.Cause(ctx)
	}
	if s.question != nil {
		return nil, c.required(n)
	}
	return s.raw, s.err
}

// required returns the error that asks the caller the question of a step.
func (c *openCall) required(n int) error {
	in := tool.Input{
		Here:  true,
		State: relayState{Node: c.pkg.manager.calls.node, Call: c.handle, Asked: n}.encode(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in.Questions = []tool.Question{*c.steps[n].question}
	for _, s := range c.steps[:n] {
		if s.question.Method != "roots/list" {
			in.Forget = append(in.Forget, s.question.Key)
		}
	}
	return &InputRequired{in}
}

// rootCache holds the answers of sessions to roots/list. It is safe for concurrent use.
type rootCache struct {
	mu sync.Mutex
	of map[string]string
}

// rootsOf returns a caller's answer to roots/list: of this request, or of its session.
func (h *Manager) rootsOf(from *Peer) (answer string, known bool) {
	if from.can()&tool.CanListRoots == 0 {
		return "", false
	}
	a, ok := from.Answers[clientroots.AnnouncedKey]
	if ok {
		if _, listed := rawjson.Get(a, "roots"); rawjson.Kind(a) != '{' || !listed || len(a) > maxRoots {
			a = tool.Answer(`{"roots":[]}`) // it answered, but named none that can be used
		}
		answer = string(rawjson.Compact(nil, a))
	}
	session := from.connection()
	if session == "" {
		return answer, ok
	}
	h.roots.mu.Lock()
	defer h.roots.mu.Unlock()
	if !ok {
		answer, ok = h.roots.of[session]
		return answer, ok
	}
	if len(h.roots.of) >= mostRoots {
		clear(h.roots.of) // they are asked for again
	}
	h.roots.of[session] = answer
	return answer, true
}

const (
	maxRoots  = 32 << 10 // bytes of an answer to roots/list
	mostRoots = 4096     // sessions whose roots are known
)
