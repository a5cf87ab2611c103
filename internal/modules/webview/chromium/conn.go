package chromium

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/cdp/jsonv2"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// ErrClosed is the error of a command after the browser has ended.
var ErrClosed = errors.New("the browser has ended")

// Event is something that a browser reports.
type Event struct {
	Session target.SessionID // "" means the browser itself
	Method  string
	Params  jsonv2.Value
}

// Decode decodes the parameters of an event.
func Decode[E any](e Event) (out E, err error) {
	err = jsonv2.Unmarshal(e.Params, &out, chromedp.DefaultUnmarshalOptions)
	return out, err
}

// Conn is a connection to a browser, on which the commands of all sessions run. It is safe for concurrent use.
// chromedp's own sessions are not used, because they keep a copy of the DOM of each page.
type Conn struct {
	transport chromedp.Transport
	event     func(Event)

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan *cdproto.Message // each has room for its one answer
	closed  bool
	done    chan struct{}
}

// NewConn returns a connection over a transport. event is called for each event in their order, by Run; it must not
// block and not wait for a command.
func NewConn(transport chromedp.Transport, event func(Event)) *Conn {
	return &Conn{
		transport: transport, event: event, waiting: map[int64]chan *cdproto.Message{}, done: make(chan struct{}),
	}
}

// Run reads until the browser closes the connection.
func (c *Conn) Run() {
	defer func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		close(c.done)
		c.transport.Close()
	}()
	for {
		var m cdproto.Message
		if err := c.transport.Read(context.Background(), &m); err != nil {
			return
		}
		if m.ID == 0 {
			c.event(Event{m.SessionID, string(m.Method), m.Params})
			continue
		}
		c.mu.Lock()
		answer := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- &m
		}
	}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection, which ends a browser that was started.
func (c *Conn) Close() error { return c.transport.Close() }

// Session is one target of a connection; the zero ID is the browser itself.
type Session struct {
	Conn *Conn
	ID   target.SessionID
}

// Pending is a command that was sent.
type Pending struct {
	conn   *Conn
	id     int64
	method string
	answer chan *cdproto.Message
	err    error
}

// Send sends a command without waiting for its answer. Commands of a session are run in the order of Send.
func Send[P, R any](s Session, cmd cdp.Command[P, R], params P) Pending {
	p := Pending{conn: s.Conn, method: cmd.Method, answer: make(chan *cdproto.Message, 1)}
	b, err := jsonv2.Marshal(params, chromedp.DefaultMarshalOptions)
	if err != nil {
		p.err = err
		return p
	}
	c := s.Conn
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		p.err = ErrClosed
		return p
	}
	c.last++
	p.id = c.last
	c.waiting[p.id] = p.answer
	c.mu.Unlock()
	m := &cdproto.Message{ID: p.id, SessionID: s.ID, Method: cdproto.MethodType(cmd.Method), Params: b}
	if err := c.transport.Write(context.Background(), m); err != nil {
		p.err = ErrClosed
	}
	return p
}

// Wait waits for the answer and decodes it into out, which may be nil.
func (p Pending) Wait(ctx context.Context, out any) error { return p.WaitUnless(ctx, nil, out) }

// ErrInterrupted is the error of WaitUnless if it waits no longer.
var ErrInterrupted = errors.New("the answer was not waited for")

// WaitUnless is Wait that ends with ErrInterrupted when stop is closed.
func (p Pending) WaitUnless(ctx context.Context, stop <-chan struct{}, out any) error {
	if p.err != nil {
		return p.err
	}
	select {
	case <-stop:
		return ErrInterrupted
	case m := <-p.answer:
		if m.Error != nil {
			return fmt.Errorf("%s: %w", p.method, m.Error)
		}
		if out == nil {
			return nil
		}
		return jsonv2.Unmarshal(m.Result, out, chromedp.DefaultUnmarshalOptions)
	case <-ctx.Done():
		p.conn.mu.Lock()
		delete(p.conn.waiting, p.id)
		p.conn.mu.Unlock()
		return context.Cause(ctx)
	case <-p.conn.done:
		return ErrClosed
	}
}

// Call runs a command and returns its result.
func Call[P, R any](ctx context.Context, s Session, cmd cdp.Command[P, R], params P) (out R, err error) {
	err = Send(s, cmd, params).Wait(ctx, &out)
	return out, err
}
