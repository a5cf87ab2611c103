package h1

import (
	"bufio"
	"bytes"
	"io"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// holds is the number of bytes of an answer that are held back until the handler returns, so that the
// whole answer is one write.
const holds = 64 << 10

// framing is the way in which the end of an answer is marked.
type framing uint8

const (
	undecided framing = iota
	counted           // by Content-Length
	chunked
	bare // no body
)

// response is the ResponseWriter of a handler. As in net/http, one goroutine at a time may use it,
// except for SetWriteDeadline and Hijack.
type response struct {
	conn   *conn
	header nethttp.Header
	status int
	closes bool // the connection closes after the answer

	framing  framing
	declared int64   // Content-Length set by the handler; -1 if it set none
	written  int64   // bytes of the body
	out      *[]byte // not yet sent: the head, and then the body
	body     int     // where the body begins in out, while the framing is undecided
	failed   error

	flowing  atomic.Bool  // the answer is being sent before the handler has returned
	deadline atomic.Int64 // set by the handler, in nanoseconds of Unix time; 0 if it set none
	limited  atomic.Bool  // the connection has a write deadline

	mu       sync.Mutex
	hijacked bool // hijacked or finished
}

var outs = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

func (w *response) Header() nethttp.Header {
	if w.header == nil {
		if w.header, w.conn.spare = w.conn.spare, nil; w.header == nil {
			w.header = make(nethttp.Header, 4)
		}
	}
	return w.header
}

// Declare sets Content-Length without a header entry.
func (w *response) Declare(length int) { w.declared = int64(length) }

// WriteHeader writes the head, except for the fields that are not known yet.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status >= 100 && status < 200 && status != nethttp.StatusSwitchingProtocols {
		w.inform(status)
		return
	}
	w.status = status
	w.out = outs.Get().(*[]byte)
	b := appendStatus((*w.out)[:0], status)
	b = w.appendHeader(b)
	switch {
	case status == 204 || status == 304:
		w.framing = bare
		b = append(b, "\r\n"...)
	case w.declared >= 0:
		w.framing = counted
		b = append(b, "\r\n"...)
	}
	w.body = len(b)
	*w.out = b
}

// inform sends an interim response.
func (w *response) inform(status int) {
	b := appendStatus(nil, status)
	for key, values := range w.header {
		b = appendField(b, key, values)
	}
	w.startStreaming()
	w.sendBytes(append(b, "\r\n"...))
}

func appendStatus(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, nethttp.StatusText(status)...)
	return append(b, "\r\n"...)
}

// appendHeader writes the header without the fields that the framing adds later.
func (w *response) appendHeader(b []byte) []byte {
	dated := false
	if values, given := w.header["Content-Length"]; given {
		w.declared = length(values)
	}
	if w.declared >= 0 {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), w.declared, 10), "\r\n"...)
	}
	for key, values := range w.header {
		switch key {
		case "Content-Length":
			continue
		case "Transfer-Encoding":
			continue // this package decides the framing
		case "Connection":
			w.closes = w.closes || len(values) == 1 && strings.EqualFold(values[0], "close")
			continue
		case "Date":
			dated = true
		}
		b = appendField(b, key, values)
	}
	if !dated {
		b = append(b, "Date: "...)
		b = append(b, w.conn.srv.date()...)
		b = append(b, "\r\n"...)
	}
	select {
	case <-w.conn.srv.ended:
		w.closes = true
	default:
	}
	if w.closes {
		b = append(b, "Connection: close\r\n"...)
	}
	return b
}

func length(values []string) int64 {
	if len(values) != 1 {
		return -1
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

func appendField(b []byte, key string, values []string) []byte {
	for _, v := range values {
		b = append(b, key...)
		b = append(b, ": "...)
		if strings.ContainsAny(v, "\r\n") {
			v = strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
		}
		b = append(b, v...)
		b = append(b, "\r\n"...)
	}
	return b
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.sniff(p)
		w.WriteHeader(nethttp.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case w.isTaken():
		return 0, nethttp.ErrHijacked
	case w.framing == bare:
		return 0, nethttp.ErrBodyNotAllowed
	case w.framing == counted && w.written+int64(len(p)) > w.declared:
		return 0, nethttp.ErrContentLength
	}
	w.written += int64(len(p))
	if w.framing != chunked && len(*w.out)+len(p) <= holds {
		*w.out = append(*w.out, p...)
		return len(p), nil
	}
	if w.framing == undecided {
		w.chunk()
	}
	if err := w.part(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sniff determines a content type if the handler set none.
func (w *response) sniff(p []byte) {
	h := w.Header()
	if _, given := h["Content-Type"]; !given && len(p) > 0 {
		h["Content-Type"] = []string{nethttp.DetectContentType(p)}
	}
}

// chunk switches an answer of unknown length to chunked coding; the bytes held back become the first
// chunk.
func (w *response) chunk() {
	held := bytes.Clone((*w.out)[w.body:])
	b := append((*w.out)[:w.body], "Transfer-Encoding: chunked\r\n\r\n"...)
	w.framing = chunked
	*w.out = b
	if len(held) > 0 {
		*w.out = appendChunk(*w.out, held)
	}
}

func appendChunk(b, p []byte) []byte {
	b = strconv.AppendInt(b, int64(len(p)), 16)
	b = append(b, "\r\n"...)
	b = append(b, p...)
	return append(b, "\r\n"...)
}

// part adds to an answer that is being sent; small parts stay in the buffer until it is flushed.
func (w *response) part(p []byte) error {
	if w.framing == counted &&
		len(p) >= bufferSize { // without a copy, which would cost as much as producing a long list
		w.startStreaming()
		w.flushBuffer()
		return w.sendBytes(p)
	}
	if w.framing == chunked {
		*w.out = appendChunk(*w.out, p)
	} else {
		*w.out = append(*w.out, p...)
	}
	if len(*w.out) < bufferSize {
		return nil
	}
	w.startStreaming()
	return w.flushBuffer()
}

// startStreaming must be called before anything is sent while the handler still runs: from then on the
// handler's deadlines apply to the connection.
func (w *response) startStreaming() {
	if !w.flowing.Swap(true) {
		w.limit(w.deadline.Load())
	}
}

func (w *response) limit(nanos int64) {
	if nanos != 0 {
		w.limited.Store(true)
		w.conn.nc.SetWriteDeadline(time.Unix(0, nanos))
	}
}

// flushBuffer sends the content of the buffer.
func (w *response) flushBuffer() error {
	err := w.sendBytes(*w.out)
	*w.out = (*w.out)[:0]
	if cap(*w.out) > holds {
		*w.out = make([]byte, 0, bufferSize)
	}
	return err
}

func (w *response) sendBytes(b []byte) error {
	if w.failed == nil && len(b) > 0 {
		_, w.failed = w.conn.nc.Write(b)
	}
	return w.failed
}

// FlushError sends what has been written.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(nethttp.StatusOK)
	}
	if w.isTaken() {
		return nethttp.ErrHijacked
	}
	if w.framing == undecided {
		w.chunk()
	}
	w.startStreaming()
	return w.flushBuffer()
}

// Flush is FlushError without the error.
func (w *response) Flush() { w.FlushError() }

// SetReadDeadline does nothing, because the body was read completely.
func (w *response) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline limits writes before the handler returns. The rest of an answer has the server's own
// limit. It is safe for concurrent use.
func (w *response) SetWriteDeadline(t time.Time) error {
	nanos := int64(0)
	if !t.IsZero() {
		nanos = t.UnixNano()
	}
	w.deadline.Store(nanos)
	switch {
	case !w.flowing.Load():
	case nanos == 0:
		w.conn.nc.SetWriteDeadline(time.Time{})
	default:
		w.limit(nanos)
	}
	return nil
}

// Hijack passes the connection to the caller, after sending what was written so far.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	hijacked := w.hijacked
	w.hijacked = true
	w.mu.Unlock()
	if hijacked {
		return nil, nil, nethttp.ErrHijacked
	}
	c := w.conn
	c.watch.stopWatch()
	if w.status != 0 {
		if w.framing == undecided {
			w.chunk()
		}
		w.flushBuffer()
	}
	if w.limited.Load() {
		c.nc.SetWriteDeadline(time.Time{})
	}
	left := c.buf[c.used:]
	if b, ok := c.watch.seen(); ok {
		left = append(bytes.Clone(left), b)
	}
	r := io.Reader(c.nc)
	if len(left) > 0 {
		r = io.MultiReader(bytes.NewReader(left), c.nc)
	}
	return c.nc, bufio.NewReadWriter(bufio.NewReader(r), bufio.NewWriter(c.nc)), nil
}

func (w *response) isTaken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hijacked
}

// finishResponse sends the rest after the handler has returned. It reports whether the connection can
// serve another request, and whether it was hijacked.
func (w *response) finishResponse() (stays, hijacked bool) {
	w.mu.Lock()
	hijacked = w.hijacked
	w.hijacked = true
	w.mu.Unlock()
	if hijacked {
		return false, true
	}
	if w.status == 0 {
		w.WriteHeader(nethttp.StatusOK)
	}
	whole := w.flushAndEnd()
	w.conn.setPhase(writing)
	err := w.flushBuffer()
	outs.Put(w.out)
	w.out = nil
	clear(w.header)
	w.conn.spare, w.header = w.header, nil
	if w.limited.Load() {
		w.conn.nc.SetWriteDeadline(time.Time{})
	}
	return err == nil && whole && !w.closes, false
}

// flushAndEnd writes the end of the body and reports whether the body is complete.
func (w *response) flushAndEnd() bool {
	switch w.framing {
	case chunked:
		*w.out = append(*w.out, "0\r\n\r\n"...)
	case counted:
		return w.written == w.declared
	case undecided:
		w.countResponse()
	}
	return true
}

// countResponse inserts the Content-Length of a body that was held back.
func (w *response) countResponse() {
	b := *w.out
	size := len(b) - w.body
	var field [48]byte
	f := append(strconv.AppendInt(append(field[:0], "Content-Length: "...), int64(size), 10), "\r\n\r\n"...)
	b = append(b, f...) // grows b
	copy(b[w.body+len(f):], b[w.body:w.body+size])
	copy(b[w.body:], f)
	*w.out = b
}
