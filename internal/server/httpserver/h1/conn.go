package h1

import (
	"bytes"
	"errors"
	"net"
	nethttp "net/http"
	"net/url"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// phase is the state of a connection.
type phase uint8

const (
	fresh     phase = iota // no byte has arrived yet
	idle                   // between two requests
	arriving               // a request is incomplete
	answering              // a handler runs
	writing                // an answer is being written
)

// aLongTimeAgo is a deadline that makes a read return at once.
var aLongTimeAgo = time.Unix(1, 0)

// conn is one connection that this package serves. One goroutine serves it; the sweep reads its phase,
// and the watch may read from the connection.
type conn struct {
	srv    *Server
	nc     net.Conn
	remote string
	state  atomic.Int64 // the phase, and the second it began in
	watch  clientWatch

	reader reader
	buf    []byte // the bytes that were read
	used   int    // bytes of buf that are processed

	like  nethttp.Request // the fields that all requests of this connection share
	spare nethttp.Header  // an empty header for the next answer; nil if there is none
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, remote: nc.RemoteAddr().String()}
	c.watch.nc = nc
	c.like = nethttp.Request{Method: "POST", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: c.remote}
	c.setPhase(fresh)
	return c
}

// setPhase starts a phase. Its time is that of the last sweep.
func (c *conn) setPhase(p phase) { c.state.Store(c.srv.now.Load()<<8 | int64(p)) }

func (c *conn) phase() (p phase, since int64) {
	v := c.state.Load()
	return phase(v & 0xff), v >> 8
}

// closeIfIdle ends what takes too long, as net/http would.
func (c *conn) closeIfIdle(now int64) {
	p, since := c.phase()
	took := time.Duration(now-since) * time.Second
	rest := c.srv.Rest
	switch {
	case p == fresh && took > rest.ReadHeaderTimeout, p == idle && took > rest.IdleTimeout:
		c.nc.Close()
	case p == arriving && took > hurryAfter:
		c.nc.SetReadDeadline(aLongTimeAgo) // the reader then hands the connection over
	case p == writing && took > rest.WriteTimeout:
		c.nc.Close()
	}
}

// serveConn runs on the connection's goroutine.
func (c *conn) serveConn() {
	defer c.srv.dropConn(c)
	c.buf = make([]byte, 0, bufferSize)
	for {
		h, v := c.readHead()
		switch {
		case v == other:
			c.handOver()
			return
		case v == more: // and no more bytes will arrive
			c.nc.Close()
			return
		}
		stays, hijacked := c.serveRequest(h)
		if hijacked {
			return
		}
		if !stays {
			c.nc.Close()
			return
		}
	}
}

// readHead waits for the next request. It returns more if there will be none.
func (c *conn) readHead() (head, verdict) {
	c.compactBuffer()
	blank := true // an empty line may come before a request, RFC 9112, section 2.2
	for {
		if blank && bytes.HasPrefix(c.buf, blankLine[:2]) {
			c.buf = c.buf[:copy(c.buf, c.buf[2:])]
			blank = false
		}
		if len(c.buf) > 0 && !(blank && len(c.buf) == 1 && c.buf[0] == '\r') {
			if h, v := c.reader.readRequestHead(c.buf); v != more {
				return h, v
			}
		}
		if !c.growBuffer() {
			return head{}, other
		}
		n, err := c.nc.Read(c.buf[len(c.buf):cap(c.buf)])
		if n > 0 && len(c.buf) == 0 {
			c.setPhase(arriving)
		}
		c.buf = c.buf[:len(c.buf)+n]
		if err != nil && n == 0 && !c.isTimeout(err) {
			if len(c.buf) > 0 {
				return head{}, other
			}
			return head{}, more
		}
	}
}

// compactBuffer moves the unused bytes to the beginning of the buffer, and shrinks the buffer.
func (c *conn) compactBuffer() {
	left := c.buf[c.used:]
	if cap(c.buf) > bufferSize && len(left) <= bufferSize {
		c.buf = append(make([]byte, 0, bufferSize), left...)
	} else {
		c.buf = c.buf[:copy(c.buf, left)]
	}
	c.used = 0
	if b, ok := c.watch.seen(); ok {
		c.buf = append(c.buf, b)
	}
	switch p, _ := c.phase(); {
	case len(c.buf) > 0:
		c.setPhase(arriving)
	case p != fresh:
		c.setPhase(idle)
	}
}

// growBuffer enlarges the buffer if it is full, up to its limit.
func (c *conn) growBuffer() bool {
	if len(c.buf) < cap(c.buf) {
		return true
	}
	if cap(c.buf) >= largestBytes {
		return false
	}
	bigger := make([]byte, len(c.buf), largestBytes)
	copy(bigger, c.buf)
	c.buf = bigger
	return true
}

// isTimeout reports whether reading continues after an error, because a sweep may have set a deadline
// while a request was about to become complete.
func (c *conn) isTimeout(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.nc.SetReadDeadline(time.Time{})
	return len(c.buf) == 0
}

// handOver passes the connection to net/http, with the bytes that were read.
func (c *conn) handOver() {
	c.nc.SetReadDeadline(time.Time{})
	c.srv.handed.offer(&prefixedConn{Conn: c.nc, read: c.buf})
}

// requestState is the memory of one request, in one allocation.
type requestState struct {
	ctx  clientContext
	w    response
	body requestBody
}

// serveRequest lets the handler answer the request at the beginning of the buffer. It reports whether the
// connection stays open for another one, and whether the handler has hijacked it.
func (c *conn) serveRequest(h head) (stays, hijacked bool) {
	c.setPhase(answering)
	t := &requestState{ctx: clientContext{Context: c.srv.ctx}, w: response{conn: c, closes: h.closes, declared: -1}}
	defer t.ctx.cancelContext()
	t.body.all = c.buf[h.size : h.size+h.length]
	t.body.Reset(t.body.all)
	c.used = h.size + h.length
	w := &t.w
	c.watch.begin(&t.ctx)
	ok := c.handle(w, c.request(t, h))
	if !ok && !w.isTaken() {
		c.watch.stopWatch()
		return false, false
	}
	stays, hijacked = w.finishResponse()
	if !hijacked {
		c.watch.stopWatch()
	}
	return stays && ok, hijacked
}

// request returns the request for the handler.
func (c *conn) request(t *requestState, h head) *nethttp.Request {
	if c.like.RequestURI != h.path {
		c.like.URL, c.like.RequestURI = &url.URL{Path: h.path}, h.path
	}
	r := c.like.WithContext(&t.ctx) // a copy
	r.Host, r.Header = h.host, h.header
	r.ContentLength, r.Close, r.Body = int64(h.length), h.closes, &t.body
	return r
}

// requestBody is a body in the connection's buffer.
type requestBody struct {
	bytes.Reader
	all []byte
}

// Whole returns the body without reading it. The caller must not keep it.
func (b *requestBody) Whole() []byte { return b.all }

func (*requestBody) Close() error { return nil }

// handle calls the handler and reports whether it returned without a panic.
func (c *conn) handle(w *response, r *nethttp.Request) (ok bool) {
	defer func() {
		v := recover()
		if v != nil && v != nethttp.ErrAbortHandler {
			c.srv.Log.Error("a handler panicked", "from", c.remote, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	c.srv.Handler.ServeHTTP(w, r)
	return true
}
