// Package h1 answers the plain POST that nearly every HTTP/1.1 request of a
// client is, at a fraction of the usual cost, and hands all others to
// net/http.
//
// A request is plain when it lies whole in a small buffer soon after its
// first byte and can be read in one way only: POST, a path of harmless
// characters, one Host, one Content-Length, nothing that changes the framing.
// From the first request that is not plain on, a connection belongs to
// net/http, which is given the very bytes that came. So there is one judge of
// everything unusual, and handlers see the same requests from both.
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

// Limits. What takes longer or is larger is left to net/http, or ended as it
// would end it.
const (
	bufferSize   = 4 << 10              // bytes a connection holds while nothing is asked
	largestBytes = 16 << 10             // of a plain request, with its head
	largestHead  = 8 << 10              // bytes
	mostFields   = 64                   // in one head
	hurryAfter   = 2 * time.Second      // until a request must be whole
	sweepEvery   = time.Second          // how exact the limits of time are
	watchAfter   = 5 * time.Millisecond // until a client is watched for leaving
)

// Server serves connections. Set the fields before Serve.
type Server struct {
	Handler nethttp.Handler // must not change a request's header or URL, and keep neither the header nor the body
	Rest    *nethttp.Server // serves what is not plain, with the same handler; its limits of time hold here too
	Log     *slog.Logger

	once   sync.Once
	handed *handoverListener // the connections that became net/http's
	now    atomic.Int64      // seconds since the server began, as of the last sweep
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

// Serve accepts connections until the listener fails or Shutdown or Close is
// called, which it reports as net/http.ErrServerClosed. It is called once.
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

// serveAccepted begins to serve a connection. What is encrypted is net/http's from the
// start: its framing is decided inside TLS.
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

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown stops accepting, closes idle connections and waits for the others
// until ctx is done. Connections that handlers have taken over are theirs.
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

// closeIdle closes the connections on which nothing is being answered, and
// says how many are left.
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

// date is the Date header of the current second.
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
