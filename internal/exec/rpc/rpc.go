// Package rpc exchanges JSON-RPC 2.0 messages with one other program: a language server, an agent or an editor.
//
// Both sides may call each other. Every call has a deadline and ends when the connection does. Messages that are too
// long end the connection, because nothing after them can be trusted.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// Codes of errors that this package sends.
const (
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	CodeBusy           = -32000
)

// mostRequests is how many requests of the other side are answered at once. More are refused with CodeBusy.
const mostRequests = 64

// ErrClosed is returned by calls whose connection has ended.
var ErrClosed = errors.New("the connection has ended")

// Error is an error that the other side answered, or that a Handler answers.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Stream carries whole messages. Read is called by one goroutine, Write by several at once. Close ends both.
type Stream interface {
	Read() ([]byte, error)
	Write(ctx context.Context, message []byte) error
	Close() error
}

// Handler answers requests and takes notifications of the other side.
type Handler struct {
	// Request runs on a goroutine of its own. Its context ends with the connection. An error that is no *Error is sent
	// with CodeInternal. nil answers CodeMethodNotFound.
	Request func(ctx context.Context, method string, params json.RawMessage) (any, error)
	// Notify runs on the goroutine that reads, in the order of the messages, and must not block. nil ignores them.
	Notify func(method string, params json.RawMessage)
}

// Conn is a connection. It is safe for concurrent use.
type Conn struct {
	stream  Stream
	handler Handler
	ctx     context.Context // ends with the connection, whose requests get it
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when reading has ended and each request was answered
	running sync.WaitGroup
	slots   chan struct{}
	last    atomic.Int64 // id of the latest call
	seen    atomic.Int64 // messages received

	mu      sync.Mutex
	pending map[string]chan message
	ended   bool
}

type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// New returns a connection over s and begins to read. The caller must call Close.
func New(s Stream, h Handler) *Conn {
	c := &Conn{
		stream: s, handler: h, done: make(chan struct{}),
		slots: make(chan struct{}, mostRequests), pending: map[string]chan message{},
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	go c.read()
	return c
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns why the connection ended, or nil.
func (c *Conn) Err() error { return context.Cause(c.ctx) }

// Received returns how many messages have arrived.
func (c *Conn) Received() int64 { return c.seen.Load() }

// Close ends the connection, and waits for the requests that are being answered.
func (c *Conn) Close() error {
	c.cancel(ErrClosed)
	err := c.stream.Close()
	<-c.done
	return err
}

// Call sends a request and decodes its result into result, which may be nil. It returns an *Error that the other side
// answered, an error that wraps ErrClosed if the connection ended first, or the cause of ctx.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	return c.CallID(ctx, method, params, result, nil)
}

// CallID is Call, and passes the id of the request to begun before it is sent, for protocols whose cancellation names
// it.
func (c *Conn) CallID(ctx context.Context, method string, params, result any, begun func(id int64)) error {
	n := c.last.Add(1)
	id := strconv.FormatInt(n, 10)
	answer := make(chan message, 1)
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return c.closed()
	}
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	if begun != nil {
		begun(n)
	}
	if err := c.send(ctx, message{ID: json.RawMessage(id), Method: method}, params); err != nil {
		return err
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return m.Error
		}
		if result == nil || len(m.Result) == 0 {
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("answer to %s: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return c.closed()
	}
}

// Notify sends a notification.
func (c *Conn) Notify(ctx context.Context, method string, params any) error {
	return c.send(ctx, message{Method: method}, params)
}

func (c *Conn) closed() error {
	if err := c.Err(); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return ErrClosed
}

func (c *Conn) send(ctx context.Context, m message, params any) (err error) {
	if params != nil {
		if m.Params, err = json.Marshal(params); err != nil {
			return fmt.Errorf("params of %s: %w", m.Method, err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.write(m)
}

// write writes a message whole, whatever becomes of the call that sends it, because half a message would end the
// connection.
func (c *Conn) write(m message) error {
	m.Version = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := c.stream.Write(c.ctx, b); err != nil {
		c.cancel(err)
		return c.closed()
	}
	return nil
}

// read reads until the stream ends. It owns the requests that it starts.
func (c *Conn) read() {
	var err error
	for {
		var b []byte
		if b, err = c.stream.Read(); err != nil {
			break
		}
		var m message
		if err = json.Unmarshal(b, &m); err != nil {
			err = fmt.Errorf("a message is not JSON-RPC: %w", err)
			break
		}
		c.seen.Add(1)
		c.dispatch(m)
	}
	c.cancel(err)
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.running.Wait()
	close(c.done)
}

func (c *Conn) dispatch(m message) {
	switch {
	case m.Method == "":
		c.mu.Lock()
		answer := c.pending[string(m.ID)]
		delete(c.pending, string(m.ID))
		c.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	case len(m.ID) == 0:
		if c.handler.Notify != nil {
			c.handler.Notify(m.Method, m.Params)
		}
	default:
		c.handleRequest(m)
	}
}

// handleRequest starts a request of the other side.
func (c *Conn) handleRequest(m message) {
	select {
	case c.slots <- struct{}{}:
	default:
		c.running.Go(func() { c.reply(m.ID, nil, &Error{Code: CodeBusy, Message: "too many requests at once"}) })
		return
	}
	c.running.Go(func() {
		defer func() { <-c.slots }()
		if c.handler.Request == nil {
			c.reply(m.ID, nil, NotFound(m.Method))
			return
		}
		result, err := c.handler.Request(c.ctx, m.Method, m.Params)
		c.reply(m.ID, result, err)
	})
}

// NotFound is the answer to an unknown method.
func NotFound(method string) error {
	return &Error{Code: CodeMethodNotFound, Message: "method not found: " + method}
}

func (c *Conn) reply(id json.RawMessage, result any, err error) {
	m := message{ID: id}
	if err == nil {
		m.Result, err = json.Marshal(result)
	}
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			e = &Error{Code: CodeInternal, Message: err.Error()}
		}
		m.Error, m.Result = e, nil
	}
	_ = c.write(m) // a connection that cannot be written to has ended, which its owner sees
}
