package client

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

const (
	outboxSize   = 64               // messages that wait to be written
	repliesSize  = 16 << 10         // bytes of notifications and replies up to which more are written with them
	writeTimeout = 30 * time.Second // a server that reads nothing for so long is given up
)

// Lines is a connection by newline-framed messages, over the standard streams of a child
// process, a socket or a pipe. What the server sends is written to it.
type Lines struct {
	*Conn
	frames frames
}

// NewLines returns a connection whose messages are written by write, one at a
// time. write may write a part of a message, and returns how much; it fails when the server
// does not read. The caller writes what the server sends to the Lines, from one
// goroutine, and calls Fail when the server has gone.
func NewLines(write func(context.Context, []byte) (int, error), o ConnOptions) *Lines {
	w := &lineCarrier{write: write, out: make(chan *outgoing, outboxSize)}
	l := &Lines{Conn: newConn(w, o)}
	w.life = l.life
	l.frames = frames{
		limit: l.o.Limit, line: func(b []byte) { l.receive(b, 0) }, long: l.receiveTooLong,
		drop: func(n int) { l.dropped.wait(l.life, n) },
	}
	go func() { // it ends with the connection
		if err := w.writeLoop(); err != nil {
			l.Fail(err)
		}
	}()
	return l
}

// Write receives what the server sends.
func (l *Lines) Write(p []byte) (int, error) { return l.frames.Write(p) }

// NewSocket returns a connection by newline-framed messages over a socket, or over one end of
// a net.Pipe to a server in this process. It closes conn. token, unless it is "", is
// part of every message, as the sockets of a Gatehouse expect it.
func NewSocket(conn net.Conn, token string, o ConnOptions) *Conn {
	if token != "" {
		meta := o.Meta
		if meta == nil {
			meta = []byte(`{}`)
		}
		o.Meta = rawjson.Splice(meta, rawjson.Edit{Key: "gatehouse/token", Value: rawjson.AppendString(nil, token)})
	}
	l := NewLines(func(ctx context.Context, b []byte) (int, error) {
		conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		return conn.Write(b)
	}, o)
	l.transport().(*lineCarrier).conn = conn
	go func() { // it ends when the socket is closed
		_, err := io.CopyBuffer(struct{ io.Writer }{l}, struct{ io.Reader }{conn}, make([]byte, 64<<10))
		if err == nil {
			err = errors.New("the server closed the connection")
		}
		l.Fail(err)
		conn.Close()
	}()
	return l.Conn
}

// lineCarrier is a carrier of lines.
type lineCarrier struct {
	write func(context.Context, []byte) (int, error)
	out   chan *outgoing
	life  context.Context // of the connection, which this is a part of
	conn  net.Conn        // nil: the owner of write ends it
}

func (w *lineCarrier) closeCarrier(string) error {
	if w.conn == nil {
		return nil
	}
	return w.conn.Close()
}

func (w *lineCarrier) request(ctx context.Context, c *Conn, o *outgoing) error {
	select {
	case w.out <- o:
		return nil
	case <-w.life.Done():
		return &NoAnswerError{false, c.Err()}
	case <-ctx.Done():
		return &NoAnswerError{false, context.Cause(ctx)}
	}
}

func (w *lineCarrier) notify(ctx context.Context, _ string, text []byte, wait bool) error {
	o := &outgoing{text: text}
	select {
	case w.out <- o:
		return nil
	default:
	}
	if !wait {
		return errors.New("the server does not read")
	}
	select {
	case w.out <- o:
		return nil
	case <-w.life.Done():
		return errors.New("the connection has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// writeLoop writes the queued messages until the connection ends.
func (w *lineCarrier) writeLoop() error {
	for {
		select {
		case o := <-w.out:
			for o != nil {
				text, next := w.gather(o)
				for len(text) > 0 {
					n, err := w.write(w.life, text)
					if text = text[n:]; err != nil && len(text) > 0 {
						return err
					}
				}
				o = next
			}
		case <-w.life.Done():
			return nil
		}
	}
}

// gather returns what is written at once: a request, or a notification or reply with those that are queued after it,
// because each write wakes the server. next was taken from the queue as well.
func (w *lineCarrier) gather(o *outgoing) (text []byte, next *outgoing) {
	if !o.markSent() {
		return nil, nil
	}
	for text = o.text; o.id == 0 && len(text) < repliesSize; text = append(text, o.text...) {
		select {
		case o = <-w.out:
			if o.id != 0 {
				return text, o
			}
		default:
			return text, nil
		}
	}
	return text, nil
}
