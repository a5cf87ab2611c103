package protocol

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
)

// Pipe is one client on a newline-framed connection. Legacy messages share the connection's one
// session; modern ones have none. Connections share nothing.
type Pipe struct {
	e     *Engine
	who   Caller
	sess  *session.Session
	slots chan struct{} // one for each running request
	open  openRequests  // requests that have not been answered
	// ctx ends with the pipe. Requests use it after ReceiveAsync has returned.
	ctx  context.Context
	stop context.CancelCauseFunc
	done chan struct{}
	once sync.Once
	// reading counts the frame that is being read; only the goroutine that reads uses it.
	reading limit.Held

	mu    sync.Mutex // held while one frame is written
	write func([]byte) error
}

// openPerSlot is the number of open requests per slot: the others wait for the client, or are
// subscriptions.
const openPerSlot = 16

// errPipe is the error of a pipe whose output cannot be written.
var errPipe = errors.New("the client does not read the server's output")

func (e *Engine) newPipe(who Caller, write func([]byte) error) *Pipe {
	who.Connection = rand.Text()
	who.Wire = who.Connection
	p := &Pipe{e: e, who: who, write: write, done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancelCause(e.base)
	p.slots = make(chan struct{}, e.opts.InFlight)
	p.open.limit = openPerSlot * e.opts.InFlight
	p.sess = session.New(session.Facts{Caller: who.Caller, Revision: mcpversion.LatestLegacy})
	p.reading, _ = e.opts.Bytes.Acquire(&who.Caller, 0) // for none there is always space
	p.sess.OnLoss(resyncMessages)
	p.sess.Queue().Attach(pipeWriter{p}, 0, false, false)
	e.changes.mu.Lock()
	e.changes.pipes[p.sess] = p
	e.changes.mu.Unlock()
	return p
}

// pipeWriter lets the pipe read its session's queue.
type pipeWriter struct{ p *Pipe }

func (w pipeWriter) WriteEvent(_ string, msg []byte) error { return w.p.sendMessage(msg) }
func (w pipeWriter) Close()                                {}

// sendMessage writes one frame. A failed write ends the pipe.
func (p *Pipe) sendMessage(msg []byte) error {
	p.mu.Lock()
	select {
	case <-p.done:
		p.mu.Unlock()
		return errPipe // no message is written to a closed connection
	default:
	}
	err := p.write(msg)
	p.mu.Unlock()
	if err != nil {
		go p.Close(fmt.Errorf("%w: %w", errPipe, err))
	}
	return err
}

// receive parses a frame and returns the remaining work; nil if there is none.
func (p *Pipe) receive(frame []byte) (work func()) {
	held := p.reading.Move()
	msgs, faults, batch := Parse(frame)
	if batch && !(p.sess.Facts().Revision.Has(mcpversion.Batches) && p.sess.Initialized()) {
		held.Release()
		p.sendMessage(appendError(nil, invalid(nil, "batches exist only in revision 2025-03-26, after its handshake")))
		return nil
	}
	if batch {
		p.batch(msgs, faults, held)
		return nil
	}
	for _, f := range faults {
		if !f.Silent {
			p.sendMessage(appendError(nil, f))
		}
	}
	if len(msgs) == 0 {
		held.Release()
		return nil
	}
	return p.handle(&msgs[0], &pipeSink{p: p, held: held})
}

// bytesWait is how long a long frame waits for the bytes that other requests of its
// caller hold. The client's input is not read meanwhile.
const bytesWait = 5 * time.Second

// Reserve counts n more bytes for the frame that is being read. It implements
// newline.Memory.
func (p *Pipe) Reserve(n int64) error { return p.reading.GrowWait(p.ctx, n, bytesWait) }

// Unreserve gives back what was counted for a frame that was not received. It
// implements newline.Memory.
func (p *Pipe) Unreserve() { p.reading.Release() }

// Refused answers a frame that was discarded because there were no bytes for it. It
// implements newline.Memory.
func (p *Pipe) Refused(why error, id []byte) {
	p.sendMessage(appendError(nil, &Fault{Code: CodeInternal, ID: id, Message: why.Error()}))
}

// Oversized answers a frame that was longer than limit bytes and was discarded unread by the transport;
// the connection stays open. id is the ID of the request in it, a raw token, or nil if none was found.
func (p *Pipe) Oversized(limit int, id []byte) {
	p.sendMessage(appendError(nil, invalid(id,
		fmt.Sprintf("the message is longer than %d bytes and was dropped", limit))))
}

// handle handles one message. For a request it returns the work, which may take long;
// other messages are handled at once. The request can be cancelled as soon as handle
// returns.
func (p *Pipe) handle(m *Message, sink *pipeSink) (work func()) {
	modern := p.e.EraOf(m, nil) == Modern
	switch {
	case !m.IsRequest():
		p.handleNotification(m)
		sink.Drop()
	case !modern && m.Method == "initialize":
		p.initialize(m, sink)
	case !p.acquireSlot(m, sink):
	case modern:
		return p.serveModern(m, sink)
	default:
		if r := p.e.newLegacy(p.e.base, p.sess, m, sink); r.registerCall(p.sess) {
			return r.dispatch
		}
	}
	return nil
}

// serveModern returns the work of a modern request, which may carry its own token.
func (p *Pipe) serveModern(m *Message, sink *pipeSink) (work func()) {
	r := p.e.newModern(p.e.base, m, nil, sink)
	if !r.registerCall(p.sess) {
		return nil
	}
	return func() {
		who, fault := p.e.authenticate(p.who, m)
		if fault != nil {
			r.sendFault(fault)
			return
		}
		if f := r.readEnvelope(who); f != nil {
			r.sendFault(f)
			return
		}
		r.dispatch()
	}
}

// handleNotification handles a notification or a response.
func (p *Pipe) handleNotification(m *Message) {
	if m.Method == "notifications/cancelled" {
		if id, ok := rawjson.Get(m.Params, "requestId"); ok {
			p.sess.Cancel(flightKey(id), errCancelled)
		}
		return
	}
	p.e.Accept(p.sess, m)
}

// acquireSlot waits for a free slot; the client's input is not read meanwhile. It
// returns false if the request was answered or dropped instead.
func (p *Pipe) acquireSlot(m *Message, sink *pipeSink) bool {
	if !p.open.acquire() {
		sink.Answer(200, appendError(nil, &Fault{Code: CodeInternal, ID: m.ID,
			Message: fmt.Sprintf(
				"%d requests are open on this connection; wait for an answer, or cancel one",
				p.open.limit,
			)}))
		return false
	}
	sink.counted = true
	if err := p.throttle(); err != nil {
		sink.Answer(200, appendError(nil, &Fault{Code: CodeInternal, ID: m.ID, Message: err.Error()}))
		return false
	}
	select {
	case p.slots <- struct{}{}:
		sink.working.Store(true)
	case <-p.ctx.Done():
	}
	switch {
	case p.ctx.Err() == nil:
		return true
	case errors.Is(context.Cause(p.ctx), errStopping):
		sink.Answer(200, appendError(nil, &Fault{Code: CodeInternal, ID: m.ID, Message: errStopping.Error()}))
	default:
		sink.Drop()
	}
	return false
}

// throttle waits if the client sends too fast; the client's input is not read
// meanwhile.
func (p *Pipe) throttle() error {
	if p.who.Pace == nil || p.ctx.Err() != nil {
		return nil
	}
	if err := p.who.Pace(p.ctx); p.ctx.Err() == nil {
		return err
	}
	return nil // the connection is closing; acquireSlot answers the request
}

// initialize serves the handshake on the reading goroutine, so that the messages that
// follow find the session initialized.
func (p *Pipe) initialize(m *Message, sink *pipeSink) {
	who, fault := p.e.authenticate(p.who, m)
	var f session.Facts
	if fault == nil {
		f, fault = p.e.readInitialize(who, m)
	}
	if fault == nil && !p.sess.Initialize(f) {
		fault = invalid(m.ID, "initialized already; a connection has one handshake")
	}
	if fault != nil {
		sink.Answer(200, appendError(nil, fault))
		return
	}
	p.reading, _ = p.e.opts.Bytes.Acquire(&f.Caller, 0) // from now on they are this principal's
	sink.Answer(200, p.e.initializeResult(&f, m.ID))
	p.e.sessionOpened(p.sess)
	if !f.Until.IsZero() {
		expiry := time.AfterFunc(time.Until(f.Until), func() { p.Close(session.ErrExpired) })
		p.sess.OnEnd(func() { expiry.Stop() })
	}
}

// Drain waits until every request that was received has been answered, or until ctx is done. The server
// calls it when its input has ended. A client that sends no more cannot cancel a subscription or answer
// a question, so requests that wait for that end.
func (p *Pipe) Drain(ctx context.Context) {
	idle := p.open.idle()
	for _, end := range p.open.closeInput() {
		end()
	}
	select {
	case <-idle:
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
}

// Close cancels running requests and ends the pipe. It is safe to call twice.
func (p *Pipe) Close(cause error) {
	p.once.Do(func() {
		p.e.changes.mu.Lock()
		delete(p.e.changes.pipes, p.sess)
		p.e.changes.mu.Unlock()
		if cause == nil {
			cause = session.ErrClosed
		}
		p.stop(cause)
		p.sess.End(cause)
		if p.sess.Initialized() {
			p.e.publishSession(SessionEnded, p.sess, false)
		}
		close(p.done)
	})
}

// batch collects the answers to one batch; the last one sends them.
type batch struct {
	p    *Pipe
	mu   sync.Mutex
	left int
	out  []byte
	held limit.Held // the bytes of the frame
}

func (p *Pipe) batch(msgs []Message, faults []*Fault, held limit.Held) {
	b := &batch{p: p, left: len(msgs) + 1, held: held}
	for _, f := range faults {
		b.addResponse(appendError(nil, f))
	}
	for i := range msgs {
		m := &msgs[i]
		switch {
		case m.IsRequest() && m.Method == "initialize":
			b.done(appendError(nil, invalid(m.ID, "initialize must not be part of a batch")))
		case m.IsRequest() && p.e.EraOf(m, nil) == Modern:
			b.done(appendError(nil, invalid(m.ID, "the revision of this message has no batches; send it alone")))
		default:
			if work := p.handle(m, &pipeSink{p: p, batch: b}); work != nil {
				go work()
			}
		}
	}
	b.done(nil)
}

func (b *batch) addResponse(msg []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.out) > 0 {
		b.out = append(b.out, ',')
	}
	b.out = append(b.out, msg...)
}

// done counts one message off; a nil msg has no answer.
func (b *batch) done(msg []byte) {
	if msg != nil {
		b.addResponse(msg)
	}
	b.mu.Lock()
	b.left--
	out := b.out
	last := b.left == 0
	if last {
		b.held.Release()
	}
	b.mu.Unlock()
	if last && len(out) > 0 {
		b.p.sendMessage(append(append([]byte("["), out...), ']'))
	}
}
