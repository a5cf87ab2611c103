package protocol

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"gatehouse/internal/rawjson"
	"gatehouse/internal/revision"
	"gatehouse/internal/session"
)

// Pipe is one client on a newline-framed connection. Legacy messages share
// the connection's one session; modern ones stand alone. Nothing of it is
// shared with other connections.
type Pipe struct {
	e     *Engine
	who   Who
	sess  *session.Session
	slots chan struct{} // one for each request in flight
	work  sync.WaitGroup
	ctx   context.Context
	stop  context.CancelCauseFunc
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex // held while one frame is written
	write func([]byte) error
}

// errPipe is why a pipe ended whose output could not be written.
var errPipe = errors.New("the client does not take our output")

func (e *Engine) newPipe(who Who, write func([]byte) error) *Pipe {
	p := &Pipe{e: e, who: who, write: write, done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancelCause(e.base)
	p.slots = make(chan struct{}, e.opts.InFlight)
	p.sess = session.New(session.Facts{Caller: who, Revision: revision.LatestLegacy})
	p.sess.Queue().Attach(pipeWriter{p}, 0, false, false)
	e.changes.mu.Lock()
	e.changes.pipes[p.sess] = struct{}{}
	e.changes.mu.Unlock()
	return p
}

// pipeWriter lets the pipe read its session's queue.
type pipeWriter struct{ p *Pipe }

func (w pipeWriter) WriteEvent(_ string, msg []byte) error { return w.p.send(msg) }
func (w pipeWriter) Close()                                {}

// send writes one frame. A failed write ends the pipe.
func (p *Pipe) send(msg []byte) error {
	p.mu.Lock()
	err := p.write(msg)
	p.mu.Unlock()
	if err != nil {
		go p.close(fmt.Errorf("%w: %w", errPipe, err))
	}
	return err
}

func (p *Pipe) receive(frame []byte) {
	msgs, faults, batch := Parse(frame)
	if batch && (p.sess.Facts().Revision != revision.V20250326 || !p.sess.Initialized()) {
		p.send(appendError(nil, invalid(nil, "batches exist only in revision 2025-03-26, after its handshake")))
		return
	}
	if batch {
		p.batch(msgs, faults)
		return
	}
	for _, f := range faults {
		p.send(appendError(nil, f))
	}
	for i := range msgs {
		p.take(&msgs[i], &pipeSink{p: p})
	}
}

func (p *Pipe) oversized(limit int) {
	p.send(appendError(nil, invalid(nil, fmt.Sprintf("the message is longer than %d bytes and was dropped", limit))))
}

// take serves one message. Requests run on goroutines of their own, so that
// a slow one holds up nobody; everything else is quick.
func (p *Pipe) take(m *Message, sink *pipeSink) {
	modern := p.e.EraOf(m, nil) == Modern
	switch {
	case !m.IsRequest():
		p.hear(m)
		sink.Drop()
	case !modern && m.Method == "initialize":
		p.initialize(m, sink)
	case !p.enter():
		sink.Drop()
	case modern:
		p.modern(m, sink)
	default:
		sink.inFlight = true
		p.work.Go(func() { p.e.legacy(p.sess, m, sink) })
	}
}

// hear takes a notification or a response.
func (p *Pipe) hear(m *Message) {
	if m.Method == "notifications/cancelled" {
		if id, ok := rawjson.Get(m.Params, "requestId"); ok {
			p.sess.Cancel(string(id), errCancelled)
		}
		return
	}
	p.e.accept(p.sess, m)
}

// enter takes a slot, and waits for one: the client is not read meanwhile.
func (p *Pipe) enter() bool {
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// modern runs a request that can be cancelled by its id like any other.
func (p *Pipe) modern(m *Message, sink *pipeSink) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	sink.inFlight = true
	sink.flight = string(m.ID)
	if !p.sess.Begin(sink.flight, cancel) {
		cancel(nil)
		sink.flight = ""
		sink.Answer(400, appendError(nil, invalid(m.ID, "this id is in flight already")))
		return
	}
	p.work.Go(func() { p.e.modern(ctx, p.who, m, nil, sink) })
}

// initialize serves the handshake, in order with what follows it.
func (p *Pipe) initialize(m *Message, sink *pipeSink) {
	f, fault := p.e.greet(p.who, m)
	if fault == nil && !p.sess.Initialize(f) {
		fault = invalid(m.ID, "initialized already; a connection has one handshake")
	}
	if fault != nil {
		sink.Answer(200, appendError(nil, fault))
		return
	}
	p.e.joined(p.sess)
	sink.Answer(200, p.e.welcome(f.Revision, m.ID))
}

func (p *Pipe) drain(ctx context.Context) {
	idle := make(chan struct{})
	go func() {
		p.work.Wait()
		for range cap(p.slots) { // also those that wait for something without a goroutine
			select {
			case p.slots <- struct{}{}:
			case <-p.ctx.Done():
			}
		}
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
}

func (p *Pipe) close(cause error) {
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
			p.e.told("session.ended", p.sess)
		}
		close(p.done)
	})
}

// pipeSink takes what one request sends back.
type pipeSink struct {
	p        *Pipe
	inFlight bool   // it holds a slot
	flight   string // of a modern request: what to forget
	batch    *batch // set when the answer is part of one
}

func (s *pipeSink) Note(msg []byte) bool { return s.p.send(msg) == nil }

func (s *pipeSink) Answer(_ int, msg []byte) {
	s.release()
	if s.batch != nil {
		s.batch.done(msg)
		return
	}
	s.p.send(msg)
}

func (s *pipeSink) Drop() {
	s.release()
	if s.batch != nil {
		s.batch.done(nil)
	}
}

func (s *pipeSink) Detach() {}

func (s *pipeSink) release() {
	if s.flight != "" {
		s.p.sess.Finish(s.flight)
	}
	if s.inFlight {
		<-s.p.slots
	}
}

// batch gathers the answers to one batch; the last one sends them.
type batch struct {
	p    *Pipe
	mu   sync.Mutex
	left int
	out  []byte
}

func (p *Pipe) batch(msgs []Message, faults []*Fault) {
	b := &batch{p: p, left: len(msgs) + 1}
	for _, f := range faults {
		b.add(appendError(nil, f))
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Method == "initialize" {
			b.done(appendError(nil, invalid(m.ID, "initialize must not be part of a batch")))
			continue
		}
		p.take(m, &pipeSink{p: p, batch: b})
	}
	b.done(nil)
}

func (b *batch) add(msg []byte) {
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
		b.add(msg)
	}
	b.mu.Lock()
	b.left--
	out := b.out
	last := b.left == 0
	b.mu.Unlock()
	if last && len(out) > 0 {
		b.p.send(append(append([]byte("["), out...), ']'))
	}
}
