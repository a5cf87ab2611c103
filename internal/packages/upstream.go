package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// revisions are the protocol revisions that a server may use, newest first. The first
// is requested.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

const (
	maxPending      = 256              // calls of one server at once
	outboxSize      = 64               // messages that wait to be written
	writeTimeout    = 30 * time.Second // a server that reads nothing for so long is killed
	exitWait        = time.Second      // for a server that closed its input to exit
	maxInvalidLines = 1000             // invalid lines, after which a server is killed
	maxErrorMessage = 8 << 10          // bytes of an error's message that are passed on
)

// upstream is the MCP client of one running server. It is safe for concurrent use.
type upstream struct {
	child   *proc.Process
	journal *journal
	secrets secret.Hider   // of its environment; hidden in everything except results
	relist  chan struct{}  // capacity 1: its tools have changed
	out     chan *outgoing // to be written
	gone    chan struct{}  // closed when the server has exited
	tools   bool           // the server offers tools
	server  Server

	invalidLines int // used by the reader only

	mu      sync.Mutex
	pending map[int64]*pendingRequest
	next    int64
	why     error // why it ended; set before gone is closed
	held    int   // callers that are about to send a request
	used    time.Time
}

// outgoing is a message to the server.
type outgoing struct {
	text      []byte
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
	progress func(done, total float64, note string)
}

type answer struct {
	result json.RawMessage
	err    error
}

// noAnswerError means that a request got no answer.
type noAnswerError struct {
	mayHaveRun bool // the server may have run the request
	why        error
}

func (e *noAnswerError) Error() string { return e.why.Error() }
func (e *noAnswerError) Unwrap() error { return e.why }

// connectUpstream connects to a server. start starts its child process, whose output goes to
// the frames.
func connectUpstream(
	ctx context.Context,
	limit int,
	j *journal,
	h secret.Hider,
	start func(*frames) (*proc.Process, error),
) (*upstream, error) {
	u := &upstream{
		journal: j, secrets: h, relist: make(chan struct{}, 1), out: make(chan *outgoing, outboxSize), gone: make(chan struct{}),
		pending: map[int64]*pendingRequest{}, used: time.Now(),
	}
	child := make(chan *proc.Process, 1)
	ready := sync.OnceFunc(func() { u.child = <-child }) // the child may speak before start returns
	f := &frames{limit: limit}
	f.line = func(b []byte) { ready(); u.handleLine(b) }
	f.long = func(head, tail []byte, n int64) { ready(); u.tooLong(head, tail, n, limit) }
	c, err := start(f)
	if err != nil {
		return nil, err
	}
	child <- c
	ready()
	go u.writeLoop(ctx)
	go func() {
		end, err := c.Wait()
		u.failWith(exitError(end, err))
		close(u.gone)
	}()
	return u, nil
}

// exitError describes how a child process exited.
func exitError(s proc.State, err error) error {
	switch {
	case errors.Is(s.Stopped, proc.ErrStopped):
		return errors.New("it was stopped")
	case s.Stopped != nil:
		return s.Stopped
	case s.Signal != "":
		return fmt.Errorf("its program was ended by a signal: %s", s.Signal)
	case err != nil:
		return err
	}
	return fmt.Errorf("its program ended with code %d", s.Code)
}

// failWith records why the connection ended; the first reason counts. All pending requests
// fail.
func (u *upstream) failWith(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.why == nil {
		u.why = why
	}
	for id, w := range u.pending {
		delete(u.pending, id)
		w.answer <- answer{err: &noAnswerError{true, u.why}}
	}
}

// killProcess kills a server that does not follow the protocol.
func (u *upstream) killProcess(why error) {
	u.failWith(why)
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once
		u.child.Stop(ctx)
	}()
}

// stopProcess stops the server as the protocol requires: it closes its input, then sends the
// termination signal, then kills it. It returns when the server has exited.
func (u *upstream) stopProcess(grace time.Duration) error {
	u.failWith(errors.New("it was stopped"))
	u.child.CloseInput(context.Background())
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-u.gone:
		return nil
	case <-t.C:
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := u.child.Stop(ctx)
	if err == nil {
		<-u.gone
	}
	return err
}

// writeLoop writes the queued messages, one at a time.
func (u *upstream) writeLoop(ctx context.Context) {
	for {
		select {
		case l := <-u.out:
			if l.markSent() {
				if err := u.writeMessage(ctx, l.text); err != nil {
					sleepUntil(u.gone, exitWait) // how it ended says more
					u.killProcess(err)
					return
				}
			}
		case <-u.gone:
			return
		}
	}
}

// writeMessage writes one message, as long as the server continues to read.
func (u *upstream) writeMessage(ctx context.Context, text []byte) error {
	moved := time.Now()
	for {
		n, err := u.child.Type(ctx, text)
		if text = text[n:]; len(text) == 0 {
			return nil
		}
		switch {
		case n > 0:
			moved = time.Now()
		case errors.Is(err, proc.ErrNoInput):
			return errors.New("it has closed its input")
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(moved) > writeTimeout:
			return fmt.Errorf("it has read nothing for %v", writeTimeout)
		}
	}
}

// query sends a request about the server itself. Its answer is stored and shown to
// users, so secrets are removed from it.
func (u *upstream) query(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	raw, err := u.request(ctx, method, params, nil)
	if w, ok := errors.AsType[*tool.WireError](err); ok {
		err = fmt.Errorf("%s (%d)", u.secrets.Hide([]byte(w.Message)), w.Code)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if raw = u.secrets.Hide(raw); rawjson.Check(raw, 0) != nil {
		return nil, fmt.Errorf("%s: the answer has a secret in it that cannot be taken out", method)
	}
	return raw, nil
}

// request sends a request and waits for the answer. An error from the server is a
// *tool.WireError; a missing answer is a *noAnswerError.
func (u *upstream) request(
	ctx context.Context,
	method string,
	params json.RawMessage,
	progress func(done, total float64, note string),
) (json.RawMessage, error) {
	w := &pendingRequest{make(chan answer, 1), progress}
	u.mu.Lock()
	if u.why != nil {
		defer u.mu.Unlock()
		return nil, &noAnswerError{false, u.why}
	}
	if len(u.pending) >= maxPending {
		u.mu.Unlock()
		return nil, &noAnswerError{false, fmt.Errorf("%d calls of it run already", maxPending)}
	}
	u.next++
	id := u.next
	u.pending[id] = w
	u.used = time.Now()
	u.mu.Unlock()
	defer u.forget(id)

	if progress != nil {
		params = withToken(params, id)
	}
	l := &outgoing{text: message(id, method, params)}
	select {
	case u.out <- l:
	case a := <-w.answer:
		a.err = &noAnswerError{false, u.reason()}
		return nil, a.err
	case <-ctx.Done():
		return nil, &noAnswerError{false, context.Cause(ctx)}
	}
	select {
	case a := <-w.answer:
		if gone, ok := errors.AsType[*noAnswerError](a.err); ok && l.withdraw() {
			return nil, &noAnswerError{false, gone.why}
		}
		return a.result, a.err
	case <-ctx.Done():
	}
	if l.withdraw() {
		return nil, &noAnswerError{false, context.Cause(ctx)}
	}
	u.notify("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d,"reason":"the caller no longer waits"}`, id))
	return nil, &noAnswerError{true, context.Cause(ctx)}
}

func (u *upstream) forget(id int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pending, id)
	u.used = time.Now()
}

// idle returns how long the server has had no request.
func (u *upstream) idle() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.pending) > 0 || u.held > 0 {
		return 0
	}
	return time.Since(u.used)
}

// retain keeps the server from being stopped as idle until release.
func (u *upstream) retain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held++
}

func (u *upstream) releaseUpstream() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held--
	u.used = time.Now()
}

func (u *upstream) reason() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.why
}

// withToken adds a progress token, the id of the request.
func withToken(params json.RawMessage, id int64) json.RawMessage {
	meta, _ := rawjson.Get(params, "_meta")
	meta = rawjson.Splice(meta, rawjson.Edit{Key: "progressToken", Value: strconv.AppendInt(nil, id, 10)})
	return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
}

// message encodes a request or, with id 0, a notification.
func message(id int64, method string, params json.RawMessage) []byte {
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

// notify sends a notification. It is dropped if the server does not read.
func (u *upstream) notify(method string, params json.RawMessage) {
	u.trySend(message(0, method, params))
}

func (u *upstream) trySend(text []byte) {
	select {
	case u.out <- &outgoing{text: text}:
	default:
	}
}

// handleLine handles one line of the server's output.
func (u *upstream) handleLine(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	err := rawjson.Check(line, 0)
	if err != nil && rawjson.Repair(line) > 0 {
		err = rawjson.Check(line, 0)
	}
	if err != nil {
		u.handleInvalid(line, err)
		return
	}
	switch rawjson.Kind(line) {
	case '{':
		u.message(line)
	case '[': // a batch of 2025-03-26
		for m := range rawjson.Elements(line) {
			if rawjson.Kind(m) == '{' {
				u.message(m)
			}
		}
	default:
		u.handleInvalid(line, errors.New("expected an object"))
	}
}

// handleInvalid handles a line that is not a message, because many programs print to
// their standard output.
func (u *upstream) handleInvalid(line []byte, err error) {
	if id, ok := answerID(line, line); ok {
		u.deliver(id, answer{err: fmt.Errorf("the server's answer is no JSON that can be passed on: %w", err)})
	}
	u.invalidLines++
	if u.invalidLines <= 20 {
		line = u.secrets.Hide(line)
		u.journal.writeLine(
			fmt.Sprintf(
				"[host] a line on standard output is no message (%v): %s",
				err,
				shorten(string(line[:min(len(line), 400)]), 200),
			),
		)
	}
	if u.invalidLines == maxInvalidLines {
		u.killProcess(errors.New("it prints what is no message to its standard output"))
	}
}

var (
	headID = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,18})\s*,`)
	tailID = regexp.MustCompile(`,\s*"id"\s*:\s*([0-9]{1,18})\s*\}\s*$`)
)

// answerID finds the id of an answer at the beginning or the end of its line, where
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

// tooLong fails the request whose answer is too long. If its id is unknown, all pending
// requests fail.
func (u *upstream) tooLong(head, tail []byte, n int64, limit int) {
	err := &tool.Refusal{
		Code:    tool.CodeTooLarge,
		Message: fmt.Sprintf("the server answered with %d bytes, and at most %d are passed on; it has run", n, limit),
		Next:    "Ask it for less.",
	}
	u.journal.writeLine(fmt.Sprintf("[host] a message of %d bytes was dropped: at most %d are passed on", n, limit))
	if id, ok := answerID(head, tail); ok {
		u.deliver(id, answer{err: err})
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, w := range u.pending {
		delete(u.pending, id)
		w.answer <- answer{err: err}
	}
}

// deliver passes an answer to its request. Only the first one counts.
func (u *upstream) deliver(id int64, a answer) {
	u.mu.Lock()
	w := u.pending[id]
	delete(u.pending, id)
	u.mu.Unlock()
	if w != nil {
		w.answer <- a
	}
}

func (u *upstream) message(m []byte) {
	id, hasID := rawjson.Get(m, "id")
	if raw, ok := rawjson.Get(m, "method"); ok {
		method, _ := rawjson.String(raw)
		params, _ := rawjson.Get(m, "params")
		if hasID && rawjson.Kind(id) != 'n' {
			u.answerRequest(id, method)
			return
		}
		u.handleNotification(method, params)
		return
	}
	n, ok := rawjson.Int(id)
	if !ok {
		return
	}
	if e, bad := rawjson.Get(m, "error"); bad && rawjson.Kind(e) == '{' {
		u.deliver(n, answer{err: wireError(e)})
		return
	}
	if r, ok := rawjson.Get(m, "result"); ok && rawjson.Kind(r) == '{' {
		u.deliver(n, answer{result: r})
		return
	}
	u.deliver(n, answer{err: errors.New("the server's answer has neither a result object nor an error")})
}

func wireError(e []byte) error {
	w := &tool.WireError{Code: -32603}
	if c, ok := rawjson.Get(e, "code"); ok {
		if n, ok := rawjson.Int(c); ok {
			w.Code = int(n)
		}
	}
	if t, ok := rawjson.Get(e, "message"); ok {
		w.Message, _ = rawjson.String(t)
	}
	if len(w.Message) > maxErrorMessage {
		w.Message = shorten(w.Message, maxErrorMessage)
	}
	if d, ok := rawjson.Get(e, "data"); ok {
		w.Data = bytes.Clone(d)
	}
	return w
}

// answerRequest answers a request of the server. This client supports only ping. id is
// any JSON value and is returned unchanged.
func (u *upstream) answerRequest(id []byte, method string) {
	if k := rawjson.Kind(id); k != '"' && k != '0' || len(id) > 1<<10 {
		return
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	if method == "ping" {
		b = append(b, `,"result":{}}`...)
	} else {
		b = append(b, `,"error":{"code":-32601,"message":"this client answers no questions"}}`...)
	}
	u.trySend(append(b, '\n'))
}

func (u *upstream) handleNotification(method string, params []byte) {
	switch method {
	case "notifications/tools/list_changed":
		select {
		case u.relist <- struct{}{}:
		default:
		}
	case "notifications/progress":
		u.handleProgress(params)
	case "notifications/message":
		level, _ := rawjson.Get(params, "level")
		data, _ := rawjson.Get(params, "data")
		data = u.secrets.Hide(data)
		u.journal.writeLine(
			fmt.Sprintf("[%s] %s", shorten(string(bytes.Trim(level, `"`)), 20), data[:min(len(data), longestLine)]),
		)
	}
}

func (u *upstream) handleProgress(params []byte) {
	var p struct {
		Token   json.RawMessage `json:"progressToken"`
		Done    float64         `json:"progress"`
		Total   float64         `json:"total"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	id, ok := rawjson.Int(p.Token)
	if !ok {
		return
	}
	u.mu.Lock()
	w := u.pending[id]
	u.mu.Unlock()
	if w != nil && w.progress != nil {
		w.progress(p.Done, p.Total, shorten(p.Message, 1000))
	}
}

// initialize performs the handshake with the server.
func (u *upstream) initialize(ctx context.Context, name, version string) error {
	params, err := json.Marshal(map[string]any{
		"protocolVersion": revisions[0], "capabilities": struct{}{},
		"clientInfo": map[string]string{"name": name, "version": version},
	})
	if err != nil {
		return err
	}
	raw, err := u.query(ctx, "initialize", params)
	if err != nil {
		return err
	}
	var r struct {
		Version      string                     `json:"protocolVersion"`
		Capabilities map[string]json.RawMessage `json:"capabilities"`
		Info         struct {
			Name    string `json:"name"`
			Title   string `json:"title"`
			Version string `json:"version"`
		} `json:"serverInfo"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("decode the answer to initialize: %w", err)
	}
	if !slices.Contains(revisions, r.Version) {
		return fmt.Errorf("it uses protocol revision %q, which this host does not support", shorten(r.Version, 40))
	}
	_, u.tools = r.Capabilities["tools"]
	u.server = Server{
		shorten(r.Info.Name, maxTitle),
		shorten(r.Info.Title, maxTitle),
		shorten(r.Info.Version, 100),
		r.Version,
	}
	u.notify("notifications/initialized", nil)
	return nil
}
