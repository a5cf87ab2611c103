package httpserver

import (
	"bytes"
	"context"
	"errors"
	nethttp "net/http"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
)

// errGone ends a modern request whose client has closed the connection, which cancels it.
var errGone = errors.New("the client closed the connection")

// answerTime is how long a client may take to receive an answer.
const answerTime = 30 * time.Second

// smallAnswer is the length below which h1 sends an answer in one write, after its handler, under a
// limit of its own.
const smallAnswer = 32 << 10

// exchange is one POST: the messages that its requests send back, as JSON or, from the first
// notification on, as a stream. It is the sink of a single request; those of a batch share it. It is
// safe for concurrent use.
type exchange struct {
	server  *Server
	session *session.Session // nil for a modern request
	framing framing
	streams bool // the client accepts event streams
	events  bool // and not JSON
	returns bool // the client can resume a stream
	begun   bool // the engine answers it, and releases what is held then
	who     protocol.Caller

	mu           sync.Mutex
	w            nethttp.ResponseWriter // nil after the response belongs to net/http again
	batch        *batch                 // nil for a single request
	wire         *wire
	stream       *session.Stream // if events have IDs; nil otherwise
	nudge        chan struct{}   // wakes the serving goroutine while it waits
	answered     bool            // the last message was sent
	over         bool            // the serving goroutine has nothing left to do
	clientClosed bool            // the client has closed the connection
	late         bool            // the serving goroutine is blocked in a handler
	cancel       func(error)     // ends a modern request
	held         limit.Held      // the bytes of its message, until it was answered
	counted      limit.Held      // among the streams, while the wire is open
}

// newExchange makes the exchange of a request whose caller is not known yet.
func (d *Server) newExchange(w nethttp.ResponseWriter, r *nethttp.Request) *exchange {
	return &exchange{server: d, w: w, framing: framingOf(r)}
}

// releaseUnlessOpen releases what is held for a request that the engine has not
// been given.
func (x *exchange) releaseUnlessOpen() {
	if !x.begun {
		x.held.Release()
		x.counted.Release()
	}
}

// count counts the exchange among the streams of its caller, once.
func (x *exchange) count() error {
	if x.counted != (limit.Held{}) {
		return nil
	}
	counted, err := x.server.opts.Streams.Acquire(&x.who.Caller, 1)
	if err == nil {
		x.counted = counted
	}
	return err
}

// serveClient runs f, in which the engine serves the request, and returns when the response is
// complete. In HTTP/2 only the serving goroutine can end a response, so it must stay free.
func (x *exchange) serveClient(client context.Context, f func()) {
	if x.framing == http2 {
		x.aside(f)
	} else {
		f()
	}
	x.waitForEngine(client)
}

// aside runs f on a goroutine of its own.
func (x *exchange) aside(f func()) {
	x.server.serving.Add(1)
	go func() {
		defer x.server.serving.Add(-1)
		f()
	}()
}

// resumable reports whether the client can resume a stream that was closed before its end.
func resumable(s *session.Session) bool {
	return s != nil && s.ID != "" && s.Revision() >= mcpversion.V20251125
}

// Note sends a message before the answer; the response becomes a stream.
func (x *exchange) Note(msg []byte) bool {
	x.mu.Lock()
	if x.answered || !x.openExchange() {
		x.mu.Unlock()
		return false
	}
	st, w := x.stream, x.wire
	x.mu.Unlock()
	if st != nil {
		return st.Send(bytes.Clone(msg))
	}
	if err := w.WriteEvent("", msg); err != nil {
		w.failWith(err)
		return false
	}
	return true
}

// openExchange makes the response a stream, if it is not one yet. The caller holds x.mu.
func (x *exchange) openExchange() bool {
	if x.wire != nil {
		return x.stream != nil || !x.clientClosed // with a stream the client can resume
	}
	if !x.streams || x.clientClosed || x.w == nil || x.count() != nil {
		return false
	}
	id := ""
	if x.session != nil && x.session.ID != "" {
		x.stream = x.session.Open()
		id = x.stream.Prime()
	}
	x.wire = x.server.newWire(x.w, x.framing, x.wireOver, x.wakeUp)
	x.wire.mu.Lock()
	if x.framing == chunked {
		// The connection may be taken over, and then the server does not read the next request on it,
		// so a client that pools connections must not send one.
		x.w.Header().Set("Connection", "close")
	}
	x.wire.writeOpening(opening(id, x.returns, x.server.opts.Retry))
	if x.late {
		x.wire.takeOver()
	}
	if x.stream != nil {
		x.stream.Attach(x.wire, 0, false, true)
	}
	if x.batch != nil {
		for _, msg := range x.batch.drain() {
			x.sendEvent(msg, false)
		}
	}
	x.wake()
	return true
}

// sendEvent sends one message on the open stream. The caller holds x.mu.
func (x *exchange) sendEvent(msg []byte, last bool) {
	switch {
	case x.stream != nil && last:
		x.stream.Last(bytes.Clone(msg))
	case x.stream != nil:
		x.stream.Send(bytes.Clone(msg))
	default:
		if msg != nil && x.wire.WriteEvent("", msg) != nil {
			go x.wire.failWith(errGone) // on another goroutine, because it calls back and this one holds x.mu
			return
		}
		if last {
			go x.wire.Close()
		}
	}
}

// Answer ends the exchange with the response.
func (x *exchange) Answer(status int, msg []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.answered {
		return
	}
	x.answered = true
	x.held.Release()
	if x.wire != nil || x.events && status == 200 && x.openExchange() {
		x.sendEvent(msg, true)
		return
	}
	if x.w != nil && !x.clientClosed {
		x.reply(status, msg)
	}
	x.finishExchange()
}

// Challenge sets the WWW-Authenticate header of the answer, unless the answer has started already.
func (x *exchange) Challenge(header string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.w != nil && !x.clientClosed && x.wire == nil {
		x.w.Header().Set("WWW-Authenticate", header)
	}
}

// reply writes a JSON response, or only a status if there is no message. The caller holds x.mu.
func (x *exchange) reply(status int, msg []byte) {
	if _, own := x.w.(declarer); !own || x.late || len(msg) >= smallAnswer {
		extend(x.w, len(msg))
	}
	if msg == nil {
		x.w.WriteHeader(status)
	} else {
		answerJSON(x.w, status, msg)
	}
	if x.late {
		x.letGo()
	}
}

// extend sets the deadline for the client to receive an answer of so many bytes, because the server's
// own limit counts from the headers and may have passed.
func extend(w nethttp.ResponseWriter, size int) {
	t := answerTime + time.Duration(size/(64<<10))*time.Second // at 64 KiB/s at least
	nethttp.NewResponseController(w).SetWriteDeadline(time.Now().Add(t))
}

// Drop ends the exchange without a response, because the request was cancelled or had none.
func (x *exchange) Drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.answered {
		return
	}
	x.answered = true
	x.held.Release()
	if x.wire != nil {
		x.sendEvent(nil, true)
		return
	}
	if x.w != nil && !x.clientClosed {
		x.reply(202, nil)
	}
	x.finishExchange()
}

// Detach ends the response while the request continues: a client that supports it resumes with the
// event ID that it was given.
func (x *exchange) Detach() {
	x.mu.Lock()
	if !x.returns || x.framing == http10 || x.answered || x.clientClosed || !x.openExchange() {
		x.mu.Unlock()
		return
	}
	w, st := x.wire, x.stream
	x.mu.Unlock()
	st.Detach(w)
	w.takeOver() // the serving goroutine may be busy
	w.Close()
}

// Late reports that the serving goroutine is blocked in a handler that ignores its deadline. Another
// goroutine will write the answer and must not wait for that one.
func (x *exchange) Late() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.late = true
	switch {
	case x.over || x.w == nil:
	case x.wire == nil:
		x.w.Header().Set("Connection", "close")
	default:
		x.wire.takeOver()
	}
}

// letGo sends what was written and ends the response without the serving goroutine, if the connection
// can be taken over. The caller holds x.mu.
func (x *exchange) letGo() {
	ctl := nethttp.NewResponseController(x.w)
	ctl.Flush()
	if x.framing == http2 {
		return
	}
	if conn, _, err := ctl.Hijack(); err == nil {
		conn.Close()
	}
}

// finishExchange marks the end for the serving goroutine. The caller holds x.mu.
func (x *exchange) finishExchange() {
	x.over = true
	x.wake()
}

// wake makes the serving goroutine check the state again. The caller holds x.mu.
func (x *exchange) wake() {
	if x.nudge != nil {
		poke(x.nudge)
	}
}

func (x *exchange) wakeUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wake()
}

// wireOver is called when the wire has ended. If a modern client has closed the connection, its request
// is cancelled; a legacy client may resume.
func (x *exchange) wireOver(cause error) {
	x.mu.Lock()
	x.clientClosed = x.clientClosed || cause != nil
	x.counted.Release()
	st, w, cancel := x.stream, x.wire, x.cancel
	if x.answered {
		cancel = nil
	}
	x.finishExchange()
	x.mu.Unlock()
	if st != nil {
		st.Detach(w)
	}
	switch {
	case cancel == nil:
	case cause == nil:
		cancel(session.ErrStop) // the server itself has closed it
	default:
		cancel(errGone)
	}
}

// lost is called when the client has closed its connection.
func (x *exchange) lost() {
	x.mu.Lock()
	x.clientClosed = true
	w, cancel := x.wire, x.cancel
	if x.answered {
		cancel = nil
	}
	if w == nil {
		x.finishExchange()
	}
	x.mu.Unlock()
	if w != nil {
		w.failWith(errGone)
	}
	if cancel != nil {
		cancel(errGone)
	}
}

// waitForEngine runs on the serving goroutine after the engine has returned: it returns when the
// response is complete, or at once if the connection can be taken over.
func (x *exchange) waitForEngine(client context.Context) {
	x.mu.Lock()
	for !x.over {
		if x.nudge == nil {
			x.nudge = make(chan struct{}, 1)
		}
		w, open := x.wire, x.wire != nil && !x.answered
		takes := open && x.framing == chunked && client.Err() == nil
		x.mu.Unlock()
		if open && x.session == nil {
			w.setIdle(func() { x.cancel(session.ErrStop) })
		}
		if takes && w.takeOver() {
			x.mu.Lock()
			break
		}
		select {
		case <-x.nudge:
			if w != nil {
				w.alive()
			}
		case <-client.Done():
			x.lost()
		}
		x.mu.Lock()
	}
	x.w = nil // it belongs to net/http after the return
	if x.wire == nil {
		x.counted.Release() // of a stream that was not opened
	}
	x.mu.Unlock()
}
