package httpserver

import (
	"bytes"
	"errors"
	"net"
	nethttp "net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	writeTime = 10 * time.Second     // until a client must have received a piece
	pieceSize = 256 << 10            // bytes written under one deadline
	joinSize  = 16 << 10             // events up to this many bytes are written in one write
	beatTime  = 5 * time.Millisecond // how long a keep-alive may delay the others
	abortTime = time.Second          // for a running write whose stream must close
)

var errEnded = errors.New("the stream has ended")

// framing is the framing of a response, which determines what can be done with its connection.
type framing uint8

const (
	http10  framing = iota // ends with the connection
	chunked                // HTTP/1.1: can be continued on the bare connection
	// the same inside TLS: taken over only to be ended, because a write that timed out cannot be finished
	secure
	http2 // shares its connection
)

func framingOf(r *nethttp.Request) framing {
	switch {
	case r.ProtoMajor > 1:
		return http2
	case r.ProtoMinor == 0:
		return http10
	case r.TLS != nil:
		return secure
	}
	return chunked
}

// wire is one open event stream to a client. It begins as the response of a request and may take the
// connection over from net/http, which releases the goroutine and its buffers. It is a session.Writer.
// It is safe for concurrent use.
type wire struct {
	limit atomic.Pointer[deadliner] // of the connection; for goroutines that cannot hold mu
	pulse *keepAlive
	nudge func()      // makes the serving goroutine check the wire
	over  func(error) // called once with the cause of its end; nil: an orderly end
	kind  framing

	mu     sync.Mutex
	rw     nethttp.ResponseWriter // nil after the connection was taken over
	ctl    *nethttp.ResponseController
	conn   net.Conn // set after it was taken over; then this package writes the framing
	token  int32    // of conn among the hangups
	broken error    // the error of writing the last event
	busy   bool     // written to since the last beat
	due    bool     // a keep-alive is due, while net/http owns the connection
	ended  bool
	idle   bool   // no message is due on it: it may be ended at any time
	leave  func() // ends an idle stream with a last message; nil: by closing it
}

type deadliner interface{ SetWriteDeadline(time.Time) error }

// newWire prepares an event stream as the response w. It calls over at its end, and nudge if it needs
// the serving goroutine; it calls neither from a goroutine that is inside one of the wire's methods.
func (d *Server) newWire(w nethttp.ResponseWriter, kind framing, over func(error), nudge func()) *wire {
	wr := &wire{pulse: &d.pulse, kind: kind, rw: w, ctl: nethttp.NewResponseController(w), over: over, nudge: nudge}
	limit := deadliner(wr.ctl)
	wr.limit.Store(&limit)
	return wr
}

// writeOpening writes the head of the response and the opening of the stream, and unlocks w.mu, which
// the caller has locked so that no event precedes the opening.
func (w *wire) writeOpening(opening []byte) {
	h := w.rw.Header()
	h["Content-Type"] = eventType
	h["Cache-Control"] = noCache
	h["X-Accel-Buffering"] = no
	w.busy = true
	w.rw.WriteHeader(200)
	w.pulse.addWire(w)
	err := w.writeMessage(opening, nil, nil)
	w.mu.Unlock()
	if err != nil {
		go w.failWith(err)
	} else if w.pulse.leaving.Load() {
		go w.dismiss()
	}
}

var (
	eventType = []string{"text/event-stream"}
	noCache   = []string{"no-cache, no-transform"}
	no        = []string{"no"}
)

// opening returns the beginning of a stream. Parsers of clients drop an event without data, although
// they must record its ID, and an empty event confuses older clients; so only clients that support
// priming get one.
func opening(id string, prime bool, retry time.Duration) []byte {
	b := []byte(": open\n\n")
	if id == "" {
		return b
	}
	b = append(b[:0], "id: "...)
	b = append(b, id...)
	b = append(b, "\nretry: "...)
	b = strconv.AppendInt(b, retry.Milliseconds(), 10)
	if prime {
		b = append(b, "\ndata:"...)
	}
	return append(b, "\n\n"...)
}

// WriteEvent writes one message as an event; an empty ID is omitted.
func (w *wire) WriteEvent(id string, msg []byte) error {
	var head [64]byte
	prefix := head[:0]
	if id != "" {
		prefix = append(prefix, "id: "...)
		prefix = append(prefix, id...)
		prefix = append(prefix, '\n')
	}
	return w.event(append(prefix, "data: "...), msg)
}

// event writes a message after a prefix that ends at the start of its data.
func (w *wire) event(prefix, msg []byte) error {
	if bytes.IndexByte(msg, '\n') >= 0 || bytes.IndexByte(msg, '\r') >= 0 {
		msg = flattened(msg)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return errEnded
	}
	w.busy = true
	w.broken = w.writeMessage(prefix, msg, eventEnd)
	return w.broken
}

var eventEnd = []byte("\n\n")

// flattened returns a message without its line breaks, which in JSON occur between tokens only.
func flattened(msg []byte) []byte {
	flat := bytes.Clone(msg)
	for i, c := range flat {
		if c == '\n' || c == '\r' {
			flat[i] = ' '
		}
	}
	return flat
}

// buffers are for events that are written in one write.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// writeMessage writes three parts as one chunk. The caller holds w.mu.
func (w *wire) writeMessage(prefix, msg, suffix []byte) error {
	n := len(prefix) + len(msg) + len(suffix)
	if n > joinSize {
		return w.writeLarge(prefix, msg, suffix)
	}
	p := buffers.Get().(*[]byte)
	b := (*p)[:0]
	if w.conn != nil {
		b = append(strconv.AppendInt(b, int64(n), 16), "\r\n"...)
	}
	b = append(append(append(b, prefix...), msg...), suffix...)
	if w.conn != nil {
		b = append(b, "\r\n"...)
	}
	err := w.writeBuffer(b)
	*p = b
	buffers.Put(p)
	if err == nil && w.conn == nil {
		err = w.flush()
	}
	return err
}

// flush sends what net/http has buffered. In HTTP/2 a deadline that passes resets the stream even if
// nothing is being written.
func (w *wire) flush() error {
	err := w.ctl.Flush()
	if w.kind == http2 {
		w.ctl.SetWriteDeadline(noLimit)
	}
	return err
}

// writeLarge writes a large event without joining its parts.
func (w *wire) writeLarge(parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if w.conn != nil {
		parts[0] = append(append(strconv.AppendInt(nil, int64(n), 16), "\r\n"...), parts[0]...)
		parts = append(parts, []byte("\r\n"))
	}
	for _, p := range parts {
		if err := w.writeBuffer(p); err != nil {
			return err
		}
	}
	if w.conn == nil {
		return w.flush()
	}
	return nil
}

// writeBuffer writes bytes to the connection. Each piece has its own deadline: a slow client receives a
// large message, but a client that has stopped reading does not block the server.
func (w *wire) writeBuffer(b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), pieceSize)]
		(*w.limit.Load()).SetWriteDeadline(time.Now().Add(writeTime))
		var err error
		if w.conn != nil {
			_, err = w.conn.Write(piece)
		} else {
			_, err = w.rw.Write(piece)
		}
		if err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}

// takeOver takes the connection over from net/http, so that no goroutine needs to wait for it. It
// returns false if that is not possible. The serving goroutine must still be running.
func (w *wire) takeOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.rw == nil || w.kind != chunked && w.kind != secure {
		return false
	}
	conn, _, err := w.ctl.Hijack()
	if err != nil {
		return false
	}
	w.conn, w.rw, w.ctl, w.nudge = conn, nil, nil, nil
	limit := deadliner(conn)
	w.limit.Store(&limit)
	w.token = w.pulse.hangups.Watch(conn, func() { w.failWith(errGone) })
	return true
}

// Close ends the stream in an orderly way; written events arrive. A blocked write is abandoned, because
// another request has taken the stream over.
func (w *wire) Close() {
	if !w.mu.TryLock() {
		(*w.limit.Load()).SetWriteDeadline(time.Now().Add(abortTime))
		w.mu.Lock()
	}
	w.closeLocked(nil)
}

// goneTime is how long clientClosed waits for the end of a connection that may have been closed already.
const goneTime = 20 * time.Millisecond

// clientClosed reports whether the client has closed a connection that was taken over from net/http. The server
// does not read from such a connection, so it notices the end by hangups, when a keep-alive cannot be written, or
// here.
func (w *wire) clientClosed() bool {
	if !w.mu.TryLock() {
		return false // a write is running
	}
	conn := w.conn
	w.mu.Unlock()
	if conn == nil {
		return false
	}
	conn.SetReadDeadline(time.Now().Add(goneTime))
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// failWith ends the stream at once, because the client has disconnected or is cut off.
func (w *wire) failWith(cause error) {
	w.mu.Lock()
	w.closeLocked(cause)
}

// closeLocked ends the stream and unlocks w.mu.
func (w *wire) closeLocked(cause error) {
	if w.ended {
		w.mu.Unlock()
		return
	}
	w.ended = true
	if cause == nil {
		cause = w.broken
	}
	if w.conn != nil {
		if cause == nil {
			w.conn.SetWriteDeadline(time.Now().Add(abortTime))
			w.conn.Write([]byte("0\r\n\r\n"))
		}
		w.conn.Close()
		w.pulse.hangups.Forget(w.token)
	} else if cause == nil {
		w.ctl.SetWriteDeadline(time.Now().Add(writeTime)) // for the bytes that net/http still writes
	}
	w.rw = nil
	w.mu.Unlock()
	w.pulse.removeWire(w)
	if w.over != nil {
		w.over(cause)
	}
}

// beat is called when a keep-alive may be due. It hardly ever waits: if a client's buffers are full, a
// separate goroutine waits, for as long as a write may take.
func (w *wire) beat() {
	if !w.mu.TryLock() {
		return // a write is running
	}
	if w.ended || w.busy {
		w.busy = false
		w.mu.Unlock()
		return
	}
	if w.conn == nil {
		w.due = true
		nudge := w.nudge
		w.mu.Unlock()
		nudge()
		return
	}
	if w.kind == secure {
		go w.finishBeat(aliveChunk)
		return
	}
	w.conn.SetWriteDeadline(time.Now().Add(beatTime))
	n, err := w.conn.Write(aliveChunk)
	switch {
	case err == nil:
		w.mu.Unlock()
	case errors.Is(err, os.ErrDeadlineExceeded):
		go w.finishBeat(aliveChunk[n:])
	default:
		w.closeLocked(err)
	}
}

var (
	aliveEvent = []byte(": alive\n\n")
	aliveChunk = []byte("9\r\n: alive\n\n\r\n")
)

// finishBeat writes the rest of a keep-alive. The caller holds w.mu.
func (w *wire) finishBeat(rest []byte) {
	if err := w.writeBuffer(rest); err != nil {
		w.closeLocked(err)
		return
	}
	w.mu.Unlock()
}

// alive writes a keep-alive that is due while net/http owns the connection.
func (w *wire) alive() {
	w.mu.Lock()
	if w.ended || !w.due || w.rw == nil {
		w.mu.Unlock()
		return
	}
	w.due = false
	if err := w.writeMessage(aliveEvent, nil, nil); err != nil {
		w.closeLocked(err)
		return
	}
	w.mu.Unlock()
}

// setIdle marks the stream, a subscription, as idle, and sets the function that ends it with a last
// message. It calls it at once if the server is stopping.
func (w *wire) setIdle(leave func()) {
	w.mu.Lock()
	w.idle, w.leave = true, leave
	w.mu.Unlock()
	if w.pulse.leaving.Load() {
		w.dismiss()
	}
}

// dismiss ends the stream if it is idle.
func (w *wire) dismiss() {
	w.mu.Lock()
	idle, leave := w.idle, w.leave
	w.mu.Unlock()
	switch {
	case leave != nil:
		leave()
	case idle:
		w.Close()
	}
}
