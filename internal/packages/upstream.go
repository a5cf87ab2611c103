package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	writeTimeout    = 30 * time.Second // a server that reads nothing for so long is killed
	exitWait        = time.Second      // for a server that closed its input to exit
	maxInvalidLines = 1000             // invalid lines, after which a server is killed
	maxErrorMessage = 8 << 10          // bytes of an error's message that are passed on
)

// child is the process of a server, with or without a sandbox.
type child interface {
	Pid() int
	Type(ctx context.Context, b []byte) (int, error)
	CloseInput(ctx context.Context) error
	Stop(ctx context.Context) error
	Wait() (proc.State, error)
}

// upstream is one running server and the connection to it. It is safe for concurrent use.
type upstream struct {
	conn    *client.Conn
	child   child // nil for a remote server
	journal *journal
	secrets secret.Hider  // of its environment; hidden in everything except results
	relist  chan struct{} // capacity 1: its tools have changed
	watched *subscriptions
	gone    chan struct{} // closed when the server has exited
	server  Server

	capabilities map[string]json.RawMessage // what the server offers; set before the server is used

	served atomic.Bool // it has answered a request of a caller

	invalidLines int // used by the reader only

	remote string // the kind of its address; "" for a child

	mu       sync.Mutex
	held     int // callers that are about to send a request
	used     time.Time
	level    slog.Level // of log messages that the session was told
	levelSet bool       // it was told one
	// calls are the open requests of callers, with those callers; owner is whose all of them have been since the
	// start, and shared that they were of several.
	calls  map[*openCall]*Peer
	owner  string
	shared bool
}

// connectUpstream connects to a server. start starts its child process, whose standard
// output goes to the writer.
func connectUpstream(
	limit int,
	p *managedPackage,
	h secret.Hider,
	o client.ConnOptions,
	start func(io.Writer) (child, error),
) (*upstream, error) {
	u := &upstream{
		journal: &p.journal, watched: &p.watched, secrets: h, relist: make(chan struct{}, 1), gone: make(chan struct{}),
		used: time.Now(),
	}
	started := make(chan child, 1)
	ready := sync.OnceFunc(func() { u.child = <-started }) // the child may speak before start returns
	o.Limit, o.Notified, o.Invalid = limit, u.handleNotification, u.handleInvalid
	o.TooLong = func(n int64) error { return u.tooLong(n, limit) }
	lines := client.NewLines(func(ctx context.Context, b []byte) (int, error) {
		ready()
		return u.writeMessage(ctx, b)
	}, o)
	u.conn = lines.Conn
	c, err := start(writerFunc(func(b []byte) (int, error) { ready(); return lines.Write(b) }))
	if err != nil {
		u.conn.Fail(err)
		return nil, err
	}
	started <- c
	ready()
	go func() {
		end, err := c.Wait()
		u.conn.Fail(exitError(end, err))
		close(u.gone)
	}()
	return u, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

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

// killProcess kills a server that does not follow the protocol.
func (u *upstream) killProcess(why error) {
	u.conn.Fail(why)
	go func() {
		if u.child == nil {
			u.conn.Close()
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once
		u.child.Stop(ctx)
	}()
}

// stopProcess stops the server as the protocol requires: it closes its input, then sends the
// termination signal, then kills it. It returns when the server has exited.
func (u *upstream) stopProcess(grace time.Duration) error {
	if u.child == nil {
		u.conn.Close() // a server may refuse the end of its session
		<-u.gone
		return nil
	}
	u.conn.Fail(errors.New("it was stopped"))
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

// writeMessage writes a message, as long as the server continues to read. A server that
// does not is killed.
func (u *upstream) writeMessage(ctx context.Context, text []byte) (written int, err error) {
	moved := time.Now()
	for {
		n, err := u.child.Type(ctx, text[written:])
		if written += n; written == len(text) {
			return written, nil
		}
		switch {
		case n > 0:
			moved = time.Now()
			continue
		case errors.Is(err, proc.ErrNoInput):
			err = errors.New("it has closed its input")
		case ctx.Err() != nil:
			return written, context.Cause(ctx)
		case time.Since(moved) > writeTimeout:
			err = fmt.Errorf("it has read nothing for %v", writeTimeout)
		default:
			continue
		}
		sleepUntil(u.gone, exitWait) // how it ended says more
		u.killProcess(err)
		return written, err
	}
}

// query sends a request about the server itself. Its answer is stored and shown to
// users, so secrets are removed from it.
func (u *upstream) query(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	raw, err := u.conn.Do(ctx, client.Request{
		Method: method, Params: params, Capabilities: capabilities(asksFor, true), // what it offers may depend on them
	})
	if e, ok := errors.AsType[*client.RPCError](err); ok {
		err = fmt.Errorf("%s (%d)", u.secrets.Hide([]byte(e.Message)), e.Code)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if raw = u.secrets.Hide(raw); rawjson.Check(raw, 0) != nil {
		return nil, fmt.Errorf("%s: the answer has a secret in it that cannot be taken out", method)
	}
	return raw, nil
}

// idle returns how long the server has had no request.
func (u *upstream) idle() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held > 0 {
		return 0
	}
	return min(u.conn.Idle(), time.Since(u.used))
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

// handleInvalid handles a line that is not a message, because many programs print to
// their standard output.
func (u *upstream) handleInvalid(line []byte, err error) {
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

// tooLong records that a message was too long, and returns the error of the request that
// it answers.
func (u *upstream) tooLong(n int64, limit int) error {
	u.journal.writeLine(fmt.Sprintf("[host] a message of %d bytes was dropped: at most %d are passed on", n, limit))
	return &tool.Refusal{
		Code:    tool.CodeTooLarge,
		Message: fmt.Sprintf("the server answered with %d bytes, and at most %d are passed on; it has run", n, limit),
		Next:    "Ask it for less.",
	}
}

// wireError returns the error response of a server as the error of a call.
func wireError(err error) error {
	e, ok := errors.AsType[*client.RPCError](err)
	if !ok {
		return err
	}
	w := &tool.WireError{Code: e.Code, Message: e.Message, Data: e.Data}
	if len(w.Message) > maxErrorMessage {
		w.Message = shorten(w.Message, maxErrorMessage)
	}
	return w
}

// listAgain has the server asked for its lists, because they may have changed.
func (u *upstream) listAgain() {
	select {
	case u.relist <- struct{}{}:
	default:
	}
}

func (u *upstream) handleNotification(method string, params json.RawMessage) {
	switch method {
	case "notifications/tools/list_changed", "notifications/resources/list_changed",
		"notifications/prompts/list_changed":
		u.listAgain()
	case "notifications/resources/updated":
		if uri, ok := stringMember(params, "uri"); ok {
			meta, _ := rawjson.Get(params, "_meta")
			u.watched.updated(uri, bytes.Clone(withoutReserved(meta)))
		}
	case "notifications/elicitation/complete":
		u.watched.pkg.reportVisited(params)
	case "notifications/message":
		if from := u.onlyCaller(); from != nil && from.passLog(u, params) {
			return
		}
		level, _ := rawjson.Get(params, "level")
		data, _ := rawjson.Get(params, "data")
		data = u.secrets.Hide(data)
		u.journal.writeLine(
			fmt.Sprintf("[%s] %s", shorten(string(bytes.Trim(level, `"`)), 20), data[:min(len(data), longestLine)]),
		)
	}
}

// registerCall counts a request of a caller as open until leave is called.
func (u *upstream) registerCall(c *openCall, from *Peer) (leave func()) {
	var owner string
	if from != nil && from.Caller != nil {
		owner = ownerOf(from.Caller)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls == nil {
		u.calls, u.owner = map[*openCall]*Peer{}, owner
	}
	u.calls[c], u.shared = from, u.shared || owner != u.owner
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.calls, c)
	}
}

// onlyCaller returns the caller that a log message is for which names no request: that of the only open request, if it
// wants log messages. A server that has served several principals may still work for another, so then there is none.
func (u *upstream) onlyCaller() *Peer {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.calls) == 1 && !u.shared && u.offers("logging") {
		for _, from := range u.calls {
			if from.wantsLogs() {
				return from
			}
		}
	}
	return nil
}

// progressOf returns a receiver of the progress of one request.
func progressOf(report func(done, total float64, note string)) func(json.RawMessage) {
	if report == nil {
		return nil
	}
	return func(params json.RawMessage) {
		var p struct {
			Done    float64 `json:"progress"`
			Total   float64 `json:"total"`
			Message string  `json:"message"`
		}
		if json.Unmarshal(params, &p) == nil {
			report(p.Done, p.Total, shorten(p.Message, 1000))
		}
	}
}

// connectServer finds out which revision the server speaks and what it offers.
// before is the revision that it spoke when it last ran; "" means that it did not.
func (u *upstream) connectServer(ctx context.Context, before string) error {
	if err := u.conn.Connect(ctx, before); err != nil {
		if e, ok := errors.AsType[*client.RPCError](err); ok {
			err = fmt.Errorf("%s (%d)", u.secrets.Hide([]byte(e.Message)), e.Code)
		}
		return fmt.Errorf("initialize: %w", err)
	}
	info := u.secrets.Hide(u.conn.Info())
	var r struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
		Info         serverInfo                 `json:"serverInfo"`
		Meta         struct {
			Info serverInfo `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(info, &r); err != nil {
		return fmt.Errorf("decode what the server says about itself: %w", err)
	}
	if u.conn.IsModern() {
		r.Info = r.Meta.Info
	}
	u.capabilities = r.Capabilities
	u.server = Server{
		shorten(r.Info.Name, maxTitle),
		shorten(r.Info.Title, maxTitle),
		shorten(r.Info.Version, 100),
		u.conn.Revision(),
	}
	return nil
}

type serverInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

// offers reports whether the server declared a capability.
func (u *upstream) offers(capability string) bool {
	_, ok := u.capabilities[capability]
	return ok
}
