package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/mcp/rawjson"

	"golang.org/x/time/rate"
)

const (
	maxPending = 256 // requests of one connection at once
	maxAnswers = 16  // requests of one server that are answered at once

	// edgeBytes is how much of both ends of a message that is too long is kept, to find
	// its id.
	edgeBytes = 256
)

// ConnOptions describe this client to the server and receive what arrives beside the
// answers. The functions are called by the goroutine that reads from the
// server, so they must not block; nil ignores what they would receive.
type ConnOptions struct {
	Name, Version string
	Capabilities  json.RawMessage // what this client can do for the server; nil means nothing
	Meta          json.RawMessage // members of the _meta of every request; nil means none
	HandshakeMeta json.RawMessage // members of the _meta of initialize, and of every modern request
	Limit         int             // bytes of one message of the server; 0 means 64 MiB

	// Notified receives notifications except the progress of a request.
	Notified func(method string, params json.RawMessage)
	// Answer answers a request of the server. It may be called concurrently and may
	// block until ctx is done, which ends with the connection, or when the server
	// withdraws the request. If it is nil, every request except ping is refused.
	Answer func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)
	// Invalid receives what the server sent instead of a message.
	Invalid func(text []byte, err error)
	// TooLong receives the size of a message that is larger than Limit. The message
	// is dropped, and the request that it answers fails with err.
	TooLong func(size int64) (err error)
}

// Request is one request to a server.
type Request struct {
	Method  string
	Params  json.RawMessage   // an object; nil means {}
	Name    string            // what the header Mcp-Name repeats: a tool, a prompt, a URI, a task
	Headers map[string]string // further headers, over HTTP to a modern server only
	Forward map[string]string // headers of the request that it is made for, over HTTP only
	// Extensions are those that the client declares with the request, an object. Only a
	// modern server reads them there; nil means none.
	Extensions json.RawMessage
	// Progress receives the params of each progress notification of the request.
	Progress func(params json.RawMessage)
	// Notified receives other notifications that are known to belong to the request: over
	// HTTP those that its response carries, and those that name it as their subscription. It
	// returns whether it has handled one; otherwise ConnOptions.Notified receives it. It must
	// not block.
	Notified func(method string, params json.RawMessage) (handled bool)
	// Capabilities are what the client can do for the server while it serves this
	// request. Only a modern server reads them there; nil means those of the connection.
	Capabilities json.RawMessage
	// Answer answers what the server asks on the stream of this request, over HTTP. It is
	// called as ConnOptions.Answer is, which answers everything if this is nil.
	Answer func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)
}

// NoAnswerError means that a request got no answer.
type NoAnswerError struct {
	MayHaveRun bool // false: no byte of the request was sent, so it can be sent again
	Why        error
}

func (e *NoAnswerError) Error() string { return e.Why.Error() }
func (e *NoAnswerError) Unwrap() error { return e.Why }

// RPCError is a server's error response.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *RPCError) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// carrier moves messages between a Conn and a server.
type carrier interface {
	// request sends a request. What the server sends goes to Conn.receive, before
	// or after request returns. An error means that there is no answer.
	request(ctx context.Context, c *Conn, o *outgoing) error
	// notify sends a message that has no answer. If the server does not read, it
	// waits until ctx is done or, without wait, drops the message.
	notify(ctx context.Context, version string, text []byte, wait bool) error
	// closeCarrier ends the connection.
	closeCarrier(version string) error
}

// outgoing is a request on its way to the server.
type outgoing struct {
	id      int64
	method  string
	name    string
	headers map[string]string
	forward map[string]string
	version string
	text    []byte // one line, with its line break

	mu        sync.Mutex
	sent      bool // some of it may have been written
	withdrawn bool // it must not be written any more
}

// markSent reports whether the message is still to be written, and records that it is.
func (l *outgoing) markSent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = !l.withdrawn
	return l.sent
}

// withdraw reports whether the message was not written; it will not be written later.
func (l *outgoing) withdraw() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdrawn = true
	return !l.sent
}

// pendingRequest is a request without an answer.
type pendingRequest struct {
	answer   chan answer // holds one
	progress func(json.RawMessage)
	notified func(string, json.RawMessage) bool
	respond  answerFunc // what the server asks on its stream; nil means the connection's
}

// answerFunc answers a request of the server.
type answerFunc = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)

type answer struct {
	result json.RawMessage
	err    error
}

// Conn is a connection to one server. It carries many requests at once and passes
// the JSON of both sides on unchanged. It is safe for concurrent use.
//
// Connect must be called once, before any other request.
type Conn struct {
	o ConnOptions
	// life ends when the connection can carry nothing more. It is a field, because the
	// connection outlives the call that makes it.
	life context.Context
	end  context.CancelFunc

	answering chan struct{} // holds one for each request of the server that is being answered
	unasked   pace          // of what the server sends beside answers
	requests  pace          // of those of the server
	dropped   pace          // of the bytes of messages that are too long

	mu      sync.Mutex
	carrier carrier         // Connect may replace it
	version string          // the revision in use; Connect sets it while the server may already send
	info    json.RawMessage // the result of server/discover or initialize; set by Connect
	pending map[int64]*pendingRequest
	asked   map[string]context.CancelFunc // by the server's raw id: withdraws what is being answered
	next    int64
	err     error // why it ended; set before life ends
	used    time.Time
}

func newConn(w carrier, o ConnOptions) *Conn {
	if o.Limit == 0 {
		o.Limit = answerLimit
	}
	if o.Capabilities == nil {
		o.Capabilities = json.RawMessage(`{}`)
	}
	c := &Conn{
		o: o, carrier: w, answering: make(chan struct{}, maxAnswers), version: modern,
		pending: map[int64]*pendingRequest{}, asked: map[string]context.CancelFunc{}, used: time.Now(),
		unasked:  pace{limit: rate.NewLimiter(unaskedRate, unaskedBurst), batch: unaskedBatch},
		requests: pace{limit: rate.NewLimiter(requestRate, requestBurst), batch: requestBatch},
		dropped:  pace{limit: rate.NewLimiter(droppedRate, droppedBurst), batch: droppedBatch},
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Revision returns the protocol revision in use.
func (c *Conn) Revision() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// transport returns what carries the messages.
func (c *Conn) transport() carrier {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carrier
}

// usesHTTP reports whether messages have headers.
func (c *Conn) usesHTTP() bool {
	_, ok := c.transport().(*httpCarrier)
	return ok
}

// IsModern reports whether requests stand alone, as in revision 2026-07-28.
func (c *Conn) IsModern() bool { return c.Revision() == modern }

// Info returns the server's result of server/discover or initialize.
func (c *Conn) Info() json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

// setRevision records the revision in use and, unless it is nil, what the server said about
// itself.
func (c *Conn) setRevision(version string, info json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = version
	if info != nil {
		c.info = info
	}
}

// Done is closed when the connection can carry nothing more.
func (c *Conn) Done() <-chan struct{} { return c.life.Done() }

// within returns a context that ends with ctx or the connection. The caller must call
// cancel.
func (c *Conn) within(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(c.life, end)
	return ctx, func() {
		stop()
		end()
	}
}

// Err returns why the connection ended; nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Idle returns for how long the connection has had no request.
func (c *Conn) Idle() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) > 0 {
		return 0
	}
	return time.Since(c.used)
}

// Close ends the connection, and the session if there is one.
func (c *Conn) Close() error {
	c.Fail(errors.New("the connection was closed"))
	return c.transport().closeCarrier(c.Revision())
}

// Fail ends the connection: pending requests fail, and later ones are refused.
// Only the first reason counts.
func (c *Conn) Fail(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = why
		c.end()
	}
	c.failPending(&NoAnswerError{true, c.err})
}

// failPending fails all requests without an answer; c.mu is held.
func (c *Conn) failPending(why error) {
	for id, p := range c.pending {
		delete(c.pending, id)
		p.answer <- answer{err: why}
	}
}

// Do sends a request and returns its result as the server sent it. An error
// response is an *RPCError; a missing answer is a *NoAnswerError.
func (c *Conn) Do(ctx context.Context, r Request) (json.RawMessage, error) {
	p := &pendingRequest{make(chan answer, 1), r.Progress, r.Notified, r.Answer}
	id, err := c.addPending(p)
	if err != nil {
		return nil, err
	}
	defer c.dropPending(id)
	version := c.Revision()
	o := &outgoing{
		id: id, method: r.Method, name: r.Name, headers: r.Headers, forward: r.Forward, version: version,
		text: c.encodeRequest(id, &r, version),
	}
	if err := c.transport().request(ctx, c, o); err != nil {
		if errors.Is(err, ErrSessionLost) {
			c.dropPending(id) // it was not run; other requests of the session may have been
			c.Fail(ErrSessionLost)
		}
		if no, ok := errors.AsType[*NoAnswerError](err); ok && no.MayHaveRun && ctx.Err() != nil {
			c.cancel(ctx, id)
		}
		select {
		case a := <-p.answer: // it came first
			return a.result, a.err
		default:
			return nil, err
		}
	}
	select {
	case a := <-p.answer:
		if no, ok := errors.AsType[*NoAnswerError](a.err); ok && o.withdraw() {
			return nil, &NoAnswerError{false, no.Why}
		}
		return a.result, a.err
	case <-ctx.Done():
	}
	if o.withdraw() {
		return nil, &NoAnswerError{false, context.Cause(ctx)}
	}
	c.cancel(ctx, id)
	return nil, &NoAnswerError{true, context.Cause(ctx)}
}

// cancel tells the server that the caller of a request no longer waits.
func (c *Conn) cancel(ctx context.Context, id int64) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	c.Notify(
		ctx,
		"notifications/cancelled",
		fmt.Appendf(nil, `{"requestId":%d,"reason":"the caller no longer waits"}`, id),
	)
}

// Notify sends a notification. It fails if the server does not read it before ctx is done.
func (c *Conn) Notify(ctx context.Context, method string, params json.RawMessage) error {
	return c.transport().notify(ctx, c.Revision(), encodeMessage(0, method, params), true)
}

// addPending adds a request to the pending ones and returns its id.
func (c *Conn) addPending(p *pendingRequest) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, &NoAnswerError{false, c.err}
	}
	if len(c.pending) >= maxPending {
		return 0, &NoAnswerError{false, fmt.Errorf("%d requests of it run already", maxPending)}
	}
	c.next++
	c.pending[c.next] = p
	c.used = time.Now()
	return c.next, nil
}

func (c *Conn) dropPending(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
	c.used = time.Now()
}

// encodeRequest encodes a request with the members of _meta that the revision, the
// options and its progress require. All others stay as the caller wrote them.
func (c *Conn) encodeRequest(id int64, r *Request, version string) []byte {
	params := r.Params
	if len(params) == 0 {
		params = json.RawMessage(`{}`)
	}
	var edits []rawjson.Edit
	add := func(members json.RawMessage) {
		for k, v := range rawjson.Object(members) {
			edits = append(edits, rawjson.Edit{Key: string(k), Value: v})
		}
	}
	if version == modern {
		capabilities := c.o.Capabilities
		if r.Capabilities != nil {
			capabilities = r.Capabilities
		}
		if r.Extensions != nil {
			capabilities = rawjson.Splice(capabilities, rawjson.Edit{Key: "extensions", Value: r.Extensions})
		}
		edits = append(edits,
			rawjson.Edit{Key: "io.modelcontextprotocol/protocolVersion", Value: rawjson.AppendString(nil, modern)},
			rawjson.Edit{Key: "io.modelcontextprotocol/clientCapabilities", Value: capabilities},
			rawjson.Edit{Key: "io.modelcontextprotocol/clientInfo", Value: c.clientInfo()},
		)
	}
	if len(c.o.Meta) > 0 {
		add(c.o.Meta)
	}
	if len(c.o.HandshakeMeta) > 0 && (version == modern || r.Method == "initialize") {
		add(c.o.HandshakeMeta)
	}
	if r.Progress != nil {
		edits = append(edits, rawjson.Edit{Key: "progressToken", Value: strconv.AppendInt(nil, id, 10)})
	}
	if len(edits) > 0 {
		meta, ok := rawjson.Get(params, "_meta")
		if !ok || rawjson.Kind(meta) != '{' {
			meta = []byte(`{}`)
		}
		params = rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: rawjson.Splice(meta, edits...)})
	}
	return encodeMessage(id, r.Method, params)
}

func (c *Conn) clientInfo() []byte {
	b := rawjson.AppendString([]byte(`{"name":`), c.o.Name)
	return append(rawjson.AppendString(append(b, `,"version":`...), c.o.Version), '}')
}

// encodeMessage encodes a request or, with id 0, a notification, as one line.
func encodeMessage(id int64, method string, params json.RawMessage) []byte {
	b := []byte(`{"jsonrpc":"2.0"`)
	if id != 0 {
		b = strconv.AppendInt(append(b, `,"id":`...), id, 10)
	}
	b = rawjson.AppendString(append(b, `,"method":`...), method)
	if params != nil {
		b = rawjson.Compact(append(b, `,"params":`...), params) // a line has no line breaks in it
	}
	return append(b, '}', '\n')
}

// What a server sends beside answers, such as notifications, is read at this rate in messages a second, after as many
// as the burst at once. A server that floods the host waits, instead of taking the processor from others. It waits for
// a batch at a time, because each wait of the host costs it more than a message does.
const (
	unaskedRate  = 1000
	unaskedBurst = 5000
	unaskedBatch = 25

	// Requests other than pings, which the host has to answer one by one, are also read at this rate.
	requestRate  = 100
	requestBurst = 500
	requestBatch = 20

	// Of messages that are too long so many bytes are read in a second, and so many at once.
	droppedRate  = 8 << 20
	droppedBurst = 1 << 20
	droppedBatch = 512 << 10
)

// pace limits what is read of a server. It is safe for concurrent use.
type pace struct {
	limit *rate.Limiter
	batch int

	mu   sync.Mutex
	paid int // of the last batch that was waited for, what is left
}

// wait waits until n may be read, or until ctx is done, which the reader notices.
func (p *pace) wait(ctx context.Context, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n > 0 {
		if p.paid == 0 {
			if one := min(n, p.batch); p.limit.AllowN(time.Now(), one) {
				p.paid = one
			} else if p.limit.WaitN(ctx, p.batch) == nil {
				p.paid = p.batch
			} else {
				return
			}
		}
		used := min(n, p.paid)
		n, p.paid = n-used, p.paid-used
	}
}

// receive handles what the server sent: a message, or a batch of revision 2025-03-26.
// within is the id of the request whose response carries it; 0 means that it is unknown.
// It waits while the server sends more than it may.
func (c *Conn) receive(text []byte, within int64) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		c.unasked.wait(c.life, 1)
		return
	}
	err := rawjson.Check(text, 0)
	if err != nil && rawjson.Repair(text) > 0 {
		err = rawjson.Check(text, 0)
	}
	if err != nil {
		c.receiveInvalid(text, err)
		return
	}
	switch rawjson.Kind(text) {
	case '{':
		c.receiveMessage(text, within)
	case '[':
		for m := range rawjson.Elements(text) {
			if rawjson.Kind(m) == '{' {
				c.receiveMessage(m, within)
			}
		}
	default:
		c.receiveInvalid(text, errors.New("expected an object"))
	}
}

// receiveInvalid handles a text that is no message. A request that it seems to answer
// fails.
func (c *Conn) receiveInvalid(text []byte, err error) {
	c.unasked.wait(c.life, 1)
	if id, ok := answerID(text, text); ok {
		c.deliver(id, answer{err: fmt.Errorf("the server's answer is no JSON that can be passed on: %w", err)})
	}
	if c.o.Invalid != nil {
		c.o.Invalid(text, err)
	}
}

// receiveTooLong handles a message of which only both ends were kept. If the id of the
// request that it answers is unknown, all pending requests fail.
func (c *Conn) receiveTooLong(head, tail []byte, n int64) {
	err := fmt.Errorf("the server sent a message of %d bytes; at most %d are accepted", n, c.o.Limit)
	if c.o.TooLong != nil {
		err = c.o.TooLong(n)
	}
	if id, ok := answerID(head, tail); ok {
		c.deliver(id, answer{err: err})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failPending(err)
}

var (
	headID = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,18})\s*,`)
	tailID = regexp.MustCompile(`,\s*"id"\s*:\s*([0-9]{1,18})\s*\}\s*$`)
)

// answerID finds the id of an answer at the beginning or the end of its text, where
// servers write it.
func answerID(head, tail []byte) (id int64, ok bool) {
	m := headID.FindSubmatch(head[:min(len(head), edgeBytes)])
	if m == nil {
		m = tailID.FindSubmatch(tail[max(0, len(tail)-edgeBytes):])
	}
	if m == nil {
		return 0, false
	}
	id, err := strconv.ParseInt(string(m[1]), 10, 64)
	return id, err == nil
}

// deliver passes an answer to its request. Only the first one counts.
func (c *Conn) deliver(id int64, a answer) {
	c.mu.Lock()
	p := c.pending[id]
	delete(c.pending, id)
	c.mu.Unlock()
	if p == nil {
		c.unasked.wait(c.life, 1)
		return
	}
	p.answer <- a
}

// isPending reports whether a request has no answer yet.
func (c *Conn) isPending(id int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending[id] != nil
}

func (c *Conn) receiveMessage(m []byte, within int64) {
	id, hasID := rawjson.Get(m, "id")
	if raw, ok := rawjson.Get(m, "method"); ok {
		c.unasked.wait(c.life, 1)
		method, _ := rawjson.String(raw)
		params, _ := rawjson.Get(m, "params")
		if hasID && rawjson.Kind(id) != 'n' {
			if method != "ping" {
				c.requests.wait(c.life, 1)
			}
			c.receiveRequest(within, bytes.Clone(id), method, bytes.Clone(params))
			return
		}
		c.receiveNotification(method, params, within)
		return
	}
	n, ok := rawjson.Int(id)
	if !ok {
		return
	}
	if e, bad := rawjson.Get(m, "error"); bad && rawjson.Kind(e) == '{' {
		c.deliver(n, answer{err: parseError(e)})
		return
	}
	if r, ok := rawjson.Get(m, "result"); ok && rawjson.Kind(r) == '{' {
		c.deliver(n, answer{result: r})
		return
	}
	c.deliver(n, answer{err: errors.New("the server's answer has neither a result object nor an error")})
}

// parseError reads the error of a response.
func parseError(e []byte) *RPCError {
	r := &RPCError{Code: -32603}
	if v, ok := rawjson.Get(e, "code"); ok {
		if n, ok := rawjson.Int(v); ok {
			r.Code = int(n)
		}
	}
	if t, ok := rawjson.Get(e, "message"); ok {
		r.Message, _ = rawjson.String(t)
	}
	if d, ok := rawjson.Get(e, "data"); ok {
		r.Data = bytes.Clone(d)
	}
	return r
}

// receiveRequest answers a request of the server. id is any JSON value and is returned
// unchanged.
func (c *Conn) receiveRequest(within int64, id []byte, method string, params json.RawMessage) {
	if k := rawjson.Kind(id); k != '"' && k != '0' || len(id) > 1<<10 {
		return
	}
	respond := c.o.Answer
	c.mu.Lock()
	if p := c.pending[within]; p != nil && p.respond != nil {
		respond = p.respond
	}
	c.mu.Unlock()
	switch {
	case method == "ping":
		c.reply(id, json.RawMessage(`{}`), nil)
	case respond == nil:
		c.reply(id, nil, &RPCError{Code: -32601, Message: "this client answers no questions"})
	default:
		select {
		case c.answering <- struct{}{}:
		default:
			c.reply(id, nil, &RPCError{Code: -32000,
				Message: fmt.Sprintf("%d requests are being answered", maxAnswers)})
			return
		}
		ctx, cancel := context.WithCancel(c.life)
		c.mu.Lock()
		c.asked[string(id)] = cancel
		c.mu.Unlock()
		go func() { // Answer returns when the connection ends
			defer func() { <-c.answering }()
			result, err := respond(ctx, method, params)
			c.mu.Lock()
			delete(c.asked, string(id))
			c.mu.Unlock()
			withdrawn := ctx.Err() != nil
			cancel()
			if !withdrawn { // the server no longer waits for it
				c.reply(id, result, err)
			}
		}()
	}
}

// withdraw ends the answering of a request that the server has cancelled. It reports
// whether there was one.
func (c *Conn) withdraw(params json.RawMessage) bool {
	id, _ := rawjson.Get(params, "requestId")
	c.mu.Lock()
	defer c.mu.Unlock()
	cancel := c.asked[string(id)]
	if cancel != nil {
		cancel()
	}
	return cancel != nil
}

func (c *Conn) reply(id []byte, result json.RawMessage, failure *RPCError) {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	if failure != nil {
		e, err := json.Marshal(failure)
		if err != nil {
			e = []byte(`{"code":-32603,"message":"the answer cannot be encoded"}`)
		}
		b = append(append(b, `,"error":`...), e...)
	} else {
		b = rawjson.Compact(append(b, `,"result":`...), result)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c.transport().notify(ctx, c.Revision(), append(b, '}', '\n'), false) // a server that does not read gets no reply
}

// subscriptionID names the subscription of a notification in its _meta.
const subscriptionID = "io.modelcontextprotocol/subscriptionId"

func (c *Conn) receiveNotification(method string, params json.RawMessage, within int64) {
	if method == "notifications/progress" {
		token, _ := rawjson.Get(params, "progressToken")
		id, ok := rawjson.Int(token)
		if !ok {
			return
		}
		c.mu.Lock()
		p := c.pending[id]
		c.mu.Unlock()
		if p != nil && p.progress != nil {
			p.progress(params)
		}
		return
	}
	if method == "notifications/cancelled" && c.withdraw(params) {
		return
	}
	if meta, ok := rawjson.Get(params, "_meta"); ok && within == 0 && rawjson.Kind(meta) == '{' {
		id, _ := rawjson.Get(meta, subscriptionID)
		within, _ = rawjson.Int(id)
	}
	c.mu.Lock()
	p := c.pending[within]
	c.mu.Unlock()
	if p != nil && p.notified != nil && p.notified(method, params) {
		return
	}
	if c.o.Notified != nil {
		c.o.Notified(method, params)
	}
}
