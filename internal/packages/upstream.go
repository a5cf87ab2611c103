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

// revisions are those a server may speak, the newest first: it is what is
// asked for.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

const (
	mostPending = 256              // calls of one server at once
	outboxSize  = 64               // messages that wait to be written
	stuck       = 30 * time.Second // a server that reads nothing for so long is ended
	endings     = time.Second      // for a server that closed its input to end
	mostGarbage = 1000             // lines that are no messages, after which a server is ended
	mostError   = 8 << 10          // bytes of an error's message that are passed on
)

// upstream is the connection to one server that runs: a lean client of it.
// Safe for concurrent use.
type upstream struct {
	child   *proc.Process
	journal *journal
	secrets secret.Hider  // of its environment: nobody but callers is shown what it says with them
	relist  chan struct{} // its tools are others; holds one
	out     chan *letter  // to be written
	gone    chan struct{} // closed when nothing more comes
	tools   bool          // it has some
	server  Server

	garbage int // belongs to the reader

	mu      sync.Mutex
	pending map[int64]*waiting
	next    int64
	why     error // it ended; set before gone is closed
	held    int   // who is about to ask something
	used    time.Time
}

// letter is one message on its way to the server.
type letter struct {
	text []byte
	mu   sync.Mutex
	sent bool // some of it may have been written
	dead bool // nobody wants it written any longer
}

// take reports whether it is still to be written, and notes that it is.
func (l *letter) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = !l.dead
	return l.sent
}

// withdraw reports whether it was not written and will not be.
func (l *letter) withdraw() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	return !l.sent
}

// waiting is who waits for an answer.
type waiting struct {
	answer   chan answer // holds one
	progress func(done, total float64, note string)
}

type answer struct {
	result json.RawMessage
	err    error
}

// lost is an answer that does not come.
type lost struct {
	ran bool // the server may have done what was asked
	why error
}

func (e *lost) Error() string { return e.why.Error() }
func (e *lost) Unwrap() error { return e.why }

// talk begins to use a server whose child is started by start, which is given
// where its output goes.
func talk(ctx context.Context, limit int, j *journal, h secret.Hider, start func(*frames) (*proc.Process, error)) (*upstream, error) {
	u := &upstream{
		journal: j, secrets: h, relist: make(chan struct{}, 1), out: make(chan *letter, outboxSize), gone: make(chan struct{}),
		pending: map[int64]*waiting{}, used: time.Now(),
	}
	child := make(chan *proc.Process, 1)
	ready := sync.OnceFunc(func() { u.child = <-child }) // the child may speak before start returns
	f := &frames{limit: limit}
	f.line = func(b []byte) { ready(); u.take(b) }
	f.long = func(head, tail []byte, n int64) { ready(); u.tooLong(head, tail, n, limit) }
	c, err := start(f)
	if err != nil {
		return nil, err
	}
	child <- c
	ready()
	go u.write(ctx)
	go func() {
		end, err := c.Wait()
		u.die(ended(end, err))
		close(u.gone)
	}()
	return u, nil
}

// ended says how a child ended, in words.
func ended(s proc.State, err error) error {
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

// die notes why the connection ends, once, and tells everybody who waits.
func (u *upstream) die(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.why == nil {
		u.why = why
	}
	for id, w := range u.pending {
		delete(u.pending, id)
		w.answer <- answer{err: &lost{true, u.why}}
	}
}

// kill ends a server that cannot be talked to.
func (u *upstream) kill(why error) {
	u.die(why)
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once
		u.child.Stop(ctx)
	}()
}

// stop asks the server to end as the protocol has it: its input is closed,
// then it is asked, then killed. It returns when the server has ended.
func (u *upstream) stop(grace time.Duration) error {
	u.die(errors.New("it was stopped"))
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

// write writes what is to be said, one message at a time.
func (u *upstream) write(ctx context.Context) {
	for {
		select {
		case l := <-u.out:
			if l.take() {
				if err := u.put(ctx, l.text); err != nil {
					sleepUntil(u.gone, endings) // how it ended says more
					u.kill(err)
					return
				}
			}
		case <-u.gone:
			return
		}
	}
}

// put writes one whole message, for as long as the server goes on reading.
func (u *upstream) put(ctx context.Context, text []byte) error {
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
		case time.Since(moved) > stuck:
			return fmt.Errorf("it has read nothing for %v", stuck)
		}
	}
}

// learn asks the server about itself. What it says is shown to people and kept,
// so the secrets are taken out of it.
func (u *upstream) learn(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
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

// request asks the server and waits for its answer. An error that the server
// gives is a *tool.WireError; what was not answered is a *lost.
func (u *upstream) request(ctx context.Context, method string, params json.RawMessage, progress func(done, total float64, note string)) (json.RawMessage, error) {
	w := &waiting{make(chan answer, 1), progress}
	u.mu.Lock()
	if u.why != nil {
		defer u.mu.Unlock()
		return nil, &lost{false, u.why}
	}
	if len(u.pending) >= mostPending {
		u.mu.Unlock()
		return nil, &lost{false, fmt.Errorf("%d calls of it run already", mostPending)}
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
	l := &letter{text: message(id, method, params)}
	select {
	case u.out <- l:
	case a := <-w.answer:
		a.err = &lost{false, u.reason()}
		return nil, a.err
	case <-ctx.Done():
		return nil, &lost{false, context.Cause(ctx)}
	}
	select {
	case a := <-w.answer:
		if gone, ok := errors.AsType[*lost](a.err); ok && l.withdraw() {
			return nil, &lost{false, gone.why}
		}
		return a.result, a.err
	case <-ctx.Done():
	}
	if l.withdraw() {
		return nil, &lost{false, context.Cause(ctx)}
	}
	u.tell("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d,"reason":"the caller no longer waits"}`, id))
	return nil, &lost{true, context.Cause(ctx)}
}

func (u *upstream) forget(id int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pending, id)
	u.used = time.Now()
}

// idle is for how long nobody has asked anything.
func (u *upstream) idle() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.pending) > 0 || u.held > 0 {
		return 0
	}
	return time.Since(u.used)
}

// hold keeps the server from being idle until release.
func (u *upstream) hold() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held++
}

func (u *upstream) release() {
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

// withToken asks for progress, under the number of the request.
func withToken(params json.RawMessage, id int64) json.RawMessage {
	meta, _ := rawjson.Get(params, "_meta")
	meta = rawjson.Splice(meta, rawjson.Edit{Key: "progressToken", Value: strconv.AppendInt(nil, id, 10)})
	return rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
}

// message writes a request or, with id 0, a notification.
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

// tell says something that nobody answers. It is dropped when the server does
// not read.
func (u *upstream) tell(method string, params json.RawMessage) { u.drop(message(0, method, params)) }

func (u *upstream) drop(text []byte) {
	select {
	case u.out <- &letter{text: text}:
	default:
	}
}

// take reads one line of the server.
func (u *upstream) take(line []byte) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return
	}
	err := rawjson.Check(line, 0)
	if err != nil && rawjson.Repair(line) > 0 {
		err = rawjson.Check(line, 0)
	}
	if err != nil {
		u.strange(line, err)
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
		u.strange(line, errors.New("expected an object"))
	}
}

// strange notes what is no message: many programs greet on their standard
// output.
func (u *upstream) strange(line []byte, err error) {
	if id, ok := whose(line, line); ok {
		u.settle(id, answer{err: fmt.Errorf("the server's answer is no JSON that can be passed on: %w", err)})
	}
	u.garbage++
	if u.garbage <= 20 {
		line = u.secrets.Hide(line)
		u.journal.say(fmt.Sprintf("[host] a line on standard output is no message (%v): %s", err, shorten(string(line[:min(len(line), 400)]), 200)))
	}
	if u.garbage == mostGarbage {
		u.kill(errors.New("it prints what is no message to its standard output"))
	}
}

var (
	headID = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,18})\s*,`)
	tailID = regexp.MustCompile(`,\s*"id"\s*:\s*([0-9]{1,18})\s*\}\s*$`)
)

// whose finds the id of an answer at the beginning or the end of its line,
// where servers write it.
func whose(head, tail []byte) (id int64, ok bool) {
	m := headID.FindSubmatch(head[:min(len(head), edge)])
	if m == nil {
		m = tailID.FindSubmatch(tail[max(0, len(tail)-edge):])
	}
	if m == nil {
		return 0, false
	}
	id, err := strconv.ParseInt(string(m[1]), 10, 64)
	return id, err == nil
}

// tooLong answers whose answer is longer than may be. Where the line does not
// tell whose it is, everybody who waits is answered.
func (u *upstream) tooLong(head, tail []byte, n int64, limit int) {
	err := &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("the server answered with %d bytes, and at most %d are passed on; it has run", n, limit), Next: "Ask it for less."}
	u.journal.say(fmt.Sprintf("[host] a message of %d bytes was dropped: at most %d are passed on", n, limit))
	if id, ok := whose(head, tail); ok {
		u.settle(id, answer{err: err})
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, w := range u.pending {
		delete(u.pending, id)
		w.answer <- answer{err: err}
	}
}

// settle gives an answer to who waits for it. Of several the first counts.
func (u *upstream) settle(id int64, a answer) {
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
			u.asked(id, method)
			return
		}
		u.told(method, params)
		return
	}
	n, ok := rawjson.Int(id)
	if !ok {
		return
	}
	if e, bad := rawjson.Get(m, "error"); bad && rawjson.Kind(e) == '{' {
		u.settle(n, answer{err: wireError(e)})
		return
	}
	if r, ok := rawjson.Get(m, "result"); ok && rawjson.Kind(r) == '{' {
		u.settle(n, answer{result: r})
		return
	}
	u.settle(n, answer{err: errors.New("the server's answer has neither a result object nor an error")})
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
	if len(w.Message) > mostError {
		w.Message = shorten(w.Message, mostError)
	}
	if d, ok := rawjson.Get(e, "data"); ok {
		w.Data = bytes.Clone(d)
	}
	return w
}

// asked answers what the server asks of its client: it is offered nothing but
// an answer to ping. id is any JSON value, and given back as it came.
func (u *upstream) asked(id []byte, method string) {
	if k := rawjson.Kind(id); k != '"' && k != '0' || len(id) > 1<<10 {
		return
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	if method == "ping" {
		b = append(b, `,"result":{}}`...)
	} else {
		b = append(b, `,"error":{"code":-32601,"message":"this client answers no questions"}}`...)
	}
	u.drop(append(b, '\n'))
}

func (u *upstream) told(method string, params []byte) {
	switch method {
	case "notifications/tools/list_changed":
		select {
		case u.relist <- struct{}{}:
		default:
		}
	case "notifications/progress":
		u.progressed(params)
	case "notifications/message":
		level, _ := rawjson.Get(params, "level")
		data, _ := rawjson.Get(params, "data")
		data = u.secrets.Hide(data)
		u.journal.say(fmt.Sprintf("[%s] %s", shorten(string(bytes.Trim(level, `"`)), 20), data[:min(len(data), longestLine)]))
	}
}

func (u *upstream) progressed(params []byte) {
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

// introduce agrees with the server on a revision.
func (u *upstream) introduce(ctx context.Context, name, version string) error {
	params, err := json.Marshal(map[string]any{
		"protocolVersion": revisions[0], "capabilities": struct{}{},
		"clientInfo": map[string]string{"name": name, "version": version},
	})
	if err != nil {
		return err
	}
	raw, err := u.learn(ctx, "initialize", params)
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
		return fmt.Errorf("the answer to initialize is not understood: %w", err)
	}
	if !slices.Contains(revisions, r.Version) {
		return fmt.Errorf("it speaks revision %q of the protocol, which this host does not", shorten(r.Version, 40))
	}
	_, u.tools = r.Capabilities["tools"]
	u.server = Server{shorten(r.Info.Name, mostTitle), shorten(r.Info.Title, mostTitle), shorten(r.Info.Version, 100), r.Version}
	u.tell("notifications/initialized", nil)
	return nil
}
