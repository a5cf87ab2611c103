// Package h1 answers plain POST requests, which are nearly all HTTP/1.1 requests of clients, at a
// fraction of the cost of net/http, and passes all other connections to net/http.
//
// A request is plain if it arrives completely in a small buffer soon after its first byte and can be
// parsed in one way only: POST, a path of unreserved characters, one Host, one Content-Length, and no
// field that changes the framing. From the first request that is not plain, net/http serves the
// connection, starting with the unchanged bytes of that request. So one parser decides all unusual
// cases, and handlers see the same requests from both.
package h1

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	nethttp "net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Limits. Requests beyond them are passed to net/http, or ended as it would end them.
const (
	bufferSize   = 4 << 10              // bytes that an idle connection holds
	largestBytes = 16 << 10             // of a plain request, including its head
	largestHead  = 8 << 10              // bytes
	mostFields   = 64                   // in one head
	hurryAfter   = 2 * time.Second      // until a request must be complete
	sweepEvery   = time.Second          // the precision of the time limits
	watchAfter   = 5 * time.Millisecond // until the server watches whether the client closes the connection
)

// Server serves connections. Set the fields before Serve.
type Server struct {
	Handler nethttp.Handler // must not change a request's header or URL, and must keep neither the header nor the body
	Rest    *nethttp.Server // serves requests that are not plain, with the same handler; its time limits apply here too
	Log     *slog.Logger

	once   sync.Once
	handed *handoverListener // passes connections to net/http
	now    atomic.Int64      // seconds since the start of the server, at the last sweep
	dated  atomic.Pointer[date]
	// ctx is the parent of the contexts of requests, as in net/http.
	ctx   context.Context
	ended chan struct{}

	mu       sync.Mutex
	listener net.Listener
	conns    map[*conn]struct{}
	closing  bool
}

func (s *Server) init() {
	s.once.Do(func() {
		s.handed = newHanded()
		s.conns = map[*conn]struct{}{}
		s.ended = make(chan struct{})
		s.ctx = context.WithValue(context.Background(), nethttp.ServerContextKey, s.Rest)
	})
}

// Serve accepts connections until the listener fails, or until Shutdown or Close is called; then it
// returns net/http.ErrServerClosed. Call it once.
func (s *Server) Serve(ln net.Listener) error {
	s.init()
	s.mu.Lock()
	s.listener = ln
	closing := s.closing
	s.mu.Unlock()
	if closing {
		ln.Close()
		return nethttp.ErrServerClosed
	}
	rest := make(chan error, 1)
	s.handed.addr = ln.Addr()
	go func() { rest <- s.Rest.Serve(s.handed) }()
	go s.sweepConns()
	err := s.accept(ln)
	s.handed.Close()
	<-rest
	return err
}

func (s *Server) accept(ln net.Listener) error {
	var pause time.Duration
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			s.serveAccepted(nc)
		case s.isClosing():
			return nethttp.ErrServerClosed
		case isTemporary(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.Log.Error("a connection could not be accepted; trying again", "err", err, "in", pause)
			time.Sleep(pause)
		default:
			return err
		}
	}
}

// isTemporary reports whether an error of accept is temporary, such as too many open
// descriptors.
func isTemporary(err error) bool {
	ne, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && ne.Temporary()
}

// serveAccepted starts to serve a connection. net/http serves a TLS connection from the start, because
// the protocol is negotiated inside TLS.
func (s *Server) serveAccepted(nc net.Conn) {
	if _, secret := nc.(*tls.Conn); secret {
		s.handed.offer(nc)
		return
	}
	c := newConn(s, nc)
	s.mu.Lock()
	closing := s.closing
	if !closing {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if closing {
		nc.Close()
		return
	}
	go c.serveConn()
}

func (s *Server) dropConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown stops accepting, closes idle connections and waits for the others until ctx is done. It does
// not wait for hijacked connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	rest := make(chan error, 1)
	go func() { rest <- s.Rest.Shutdown(ctx) }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for s.closeIdle() > 0 {
		select {
		case <-ctx.Done():
			<-rest
			return ctx.Err()
		case <-look.C:
		}
	}
	return <-rest
}

// Close closes every connection at once.
func (s *Server) Close() error {
	s.stopAccepting()
	s.mu.Lock()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	return s.Rest.Close()
}

func (s *Server) stopAccepting() {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	close(s.ended)
	if s.listener != nil {
		s.listener.Close()
	}
}

// closeIdle closes the connections on which no request is being answered, and returns the number of the
// others.
func (s *Server) closeIdle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if p, _ := c.phase(); p == fresh || p == idle {
			c.nc.Close()
		}
	}
	return len(s.conns)
}

// sweepConns enforces the time limits: one goroutine for all connections
// instead of a timer for each request.
func (s *Server) sweepConns() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		now := int64(time.Since(began) / time.Second)
		s.now.Store(now)
		s.mu.Lock()
		for c := range s.conns {
			c.closeIfIdle(now)
		}
		s.mu.Unlock()
	}
}

// date returns the Date header of the current second.
func (s *Server) date() string {
	now := time.Now()
	if d := s.dated.Load(); d != nil && d.second == now.Unix() {
		return d.text
	}
	d := &date{now.Unix(), now.UTC().Format(nethttp.TimeFormat)}
	s.dated.Store(d)
	return d.text
}

type date struct {
	second int64
	text   string
}
