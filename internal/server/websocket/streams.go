package websocket

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/access/identity"
	"gatehouse/tool"
)

const (
	streamWait = time.Minute      // how long the ticket of a stream can be used
	writeTime  = 10 * time.Second // for a client to accept one message
)

// Streams serves WebSockets that carry one stream of bytes each, such as the output of a terminal, at /ws with a
// ticket. A call that was allowed to read the stream makes the ticket, which works once. It is safe for concurrent
// use; Run has to run for streams to be served.
type Streams struct {
	// Claim takes one of the clients for a caller, or returns why it gets none.
	Claim func(tool.Caller) (release func(), err error)
	Log   *slog.Logger

	mu   sync.Mutex
	life context.Context // nil while Run does not serve
	kept map[string]stream
	open map[*stream]context.CancelFunc
	work sync.WaitGroup
}

// Send sends one message to the client: bytes of the stream, or with text a JSON text about it.
type Send func(text bool, message []byte) error

type stream struct {
	caller tool.Caller
	until  time.Time
	serve  func(context.Context, Send) error
}

// Offer keeps a stream for a caller and returns the path at which one WebSocket gets it, once, within a minute. serve
// sends it, in a goroutine of its own, until it returns, its context is done or Send fails.
func (s *Streams) Offer(c tool.Caller, serve func(context.Context, Send) error) (path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for t, k := range s.kept {
		if now.After(k.until) {
			delete(s.kept, t)
		}
	}
	if len(s.kept) >= maxTickets {
		return "", tool.Refuse(tool.CodeBusy, "too many streams wait for their WebSockets")
	}
	if s.kept == nil {
		s.kept = map[string]stream{}
	}
	t := rand.Text() + rand.Text()
	s.kept[t] = stream{c, now.Add(streamWait), serve}
	return "/ws?ticket=" + t, nil
}

// Has reports whether a request has a ticket, so that Serve is to answer it.
func (s *Streams) Has(r *http.Request) bool { return s != nil && r.URL.Query().Has("ticket") }

// Serve serves a request with a ticket. The HTTP server has checked its origin.
func (s *Streams) Serve(w http.ResponseWriter, r *http.Request) {
	presented := r.URL.Query()["ticket"]
	s.mu.Lock()
	of, ok := s.kept[presented[0]]
	delete(s.kept, presented[0])
	life := s.life
	s.mu.Unlock()
	if !ok || len(presented) > 1 || life == nil || time.Now().After(of.until) {
		http.Error(w, "this ticket is not valid: it is good once, for a minute", http.StatusUnauthorized)
		return
	}
	release, err := s.Claim(of.caller)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // see the comment above
	if err != nil {
		release()
		return
	}
	ctx, cancel := context.WithTimeout(life, ticketLife)
	s.mu.Lock()
	if s.open == nil {
		s.open = map[*stream]context.CancelFunc{}
	}
	s.open[&of] = cancel
	s.work.Go(func() {
		defer release()
		defer func() {
			cancel()
			conn.CloseNow()
			s.mu.Lock()
			delete(s.open, &of)
			s.mu.Unlock()
		}()
		s.run(ctx, conn, of.serve)
	})
	s.mu.Unlock()
}

func (s *Streams) run(ctx context.Context, conn *websocket.Conn, serve func(context.Context, Send) error) {
	ctx = conn.CloseRead(ctx) // ends when the client closes; it may send nothing
	err := serve(ctx, func(text bool, message []byte) error {
		kind := websocket.MessageBinary
		if text {
			kind = websocket.MessageText
		}
		limited, cancel := context.WithTimeout(ctx, writeTime)
		defer cancel()
		return conn.Write(limited, kind, message)
	})
	if err == nil {
		conn.Close(websocket.StatusNormalClosure, "")
		return
	}
	s.Log.DebugContext(ctx, "a stream has ended", "err", err)
}

// Revoke ends the streams and tickets of a credential that was revoked.
func (s *Streams) Revoke(r identity.Revocation) {
	ends := func(c tool.Caller) bool {
		return c.Principal == r.Principal && (r.Credential == "" || c.Credential == r.Credential)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, k := range s.kept {
		if ends(k.caller) {
			delete(s.kept, t)
		}
	}
	for k, cancel := range s.open {
		if ends(k.caller) {
			cancel()
		}
	}
}

// Run lets streams be served until ctx is done, and returns when they have ended.
func (s *Streams) Run(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.life = life
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	stop()
	s.work.Wait()
	return nil
}
