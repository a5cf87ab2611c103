// Package session keeps what a legacy client and we remember of each other
// between requests: who it is, what it can do, the streams it reads and the
// requests we have open with it.
//
// It knows no method and no transport. A session belongs to the principal
// that opened it, lives until it is ended or idle for too long, and costs
// well under 1 KiB and no goroutine while nothing happens.
package session

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/tool"
)

// Facts are what is known about the caller of one request: from the session
// record, or from the request alone where there is no session.
type Facts struct {
	tool.Caller
	Cut      permit.Cut
	Revision mcpversion.Revision
	Until    time.Time // when the credential ends; streams end with it, jobs do not. Zero means never
}

// Session is one legacy client's session. Safe for concurrent use.
type Session struct {
	ID string // "" on a connection that is its own session

	opened int64        // unix nanoseconds
	active atomic.Int64 // the last sign of life, in nanoseconds of uptime

	// A call takes mu three times: when the session is found, when the call
	// begins and when it ends.
	mu          sync.Mutex
	busy        int32 // requests and streams that are open
	initialized bool
	ended       bool
	facts       *Facts     // never changed, only replaced: requests share it
	first       [2]flight  // requests in flight, while there are not more
	level       slog.Level // least level of log messages the client wants
	queue       *Stream    // what is said outside any request; made on first use
	live        *live      // further requests, and questions; made on first use
	stop        []func()   // run once at the end
	resync      func(*Session) [][]byte
	seen        [3]uint64 // what the client last knew of its lists
}

// live is the part of a session that most sessions never need.
type live struct {
	flights map[string]func(cause error) // by raw request id: cancels it
	asks    map[string]func(Reply)       // by our request id: takes the client's response
	streams map[uint64]*Stream           // answers that stream, for resuming
	nextAsk uint64
	nextID  uint64
	subs    map[string]func() // subscriptions by URI: stops them; nil while they are suspended
}

// Reply is a client's response to a request of ours.
type Reply struct {
	Result []byte // raw result object; nil when Error is set
	Error  []byte // raw error object
}

// New makes a session that stands for a connection of its own. Sessions with
// an id are made by a Table.
func New(f Facts) *Session {
	s := &Session{facts: &f, level: slog.LevelInfo}
	s.Touch()
	s.opened = clock().UnixNano()
	return s
}

// Opened is when it was made.
func (s *Session) Opened() time.Time { return time.Unix(0, s.opened) }

// Touch notes a sign of life.
func (s *Session) Touch() { s.active.Store(int64(uptime())) }

// clock is replaced by tests, and start a moment that spans are counted from: the
// monotonic clock decides what is idle, because the time of day can be set while
// the host runs, which must neither end all sessions nor keep them.
var (
	clock = time.Now
	start = clock()
)

func uptime() time.Duration { return clock().Sub(start) }

// Hold keeps the session from being swept while something of it is open; call
// the result when that has ended.
func (s *Session) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	return func() {
		s.mu.Lock()
		s.busy--
		s.mu.Unlock()
		s.Touch()
	}
}

// Facts are what the handshake told.
func (s *Session) Facts() Facts { return *s.Known() }

// Known is Facts without a copy: it must not be changed.
func (s *Session) Known() *Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts
}

// Initialize sets the facts once; a second handshake reports false.
func (s *Session) Initialize(f Facts) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.initialized {
		return false
	}
	f.Session = s.ID
	s.facts, s.initialized = &f, true
	return true
}

// Proven notes by which credential the principal has come this time, and when
// that ends. Streams of the session end with the last one that was shown. What
// it returns is Known with that credential.
func (s *Session) Proven(c *tool.Caller, until time.Time) *Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.facts
	if was.Credential == c.Credential && was.Until.Equal(until) && slices.Equal(was.Roles, c.Roles) && slices.Equal(was.Scopes, c.Scopes) {
		return was
	}
	f := *was
	f.Roles, f.Scopes, f.Credential, f.Until = c.Roles, c.Scopes, c.Credential, until
	s.facts = &f
	return s.facts
}

// lapse takes the streams from whoever reads them, because the credential they
// were opened with has run out. The session stays for one who shows a new one.
func (s *Session) lapse() {
	s.mu.Lock()
	var all []*Stream
	if s.queue != nil {
		all = append(all, s.queue)
	}
	if s.live != nil {
		for _, st := range s.live.streams {
			all = append(all, st)
		}
	}
	s.mu.Unlock()
	for _, st := range all {
		st.take()
	}
}

// Initialized reports whether the handshake has happened.
func (s *Session) Initialized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initialized
}

// Level is the least level of log messages the client wants.
func (s *Session) Level() slog.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

// SetLevel changes it.
func (s *Session) SetLevel(l slog.Level) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = l
}

// SwapSeen notes fingerprints of what the client knows and returns the
// earlier ones.
func (s *Session) SwapSeen(now [3]uint64) (old [3]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.seen = s.seen, now
	return old
}

// OnEnd runs f when the session ends, at once if it has ended.
func (s *Session) OnEnd(f func()) {
	s.mu.Lock()
	if !s.ended {
		s.stop = append(s.stop, f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f()
}

// Ended reports whether the session is over.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// End ends the session: everything in flight is cancelled, streams close,
// questions are answered with nothing. Safe to call twice.
func (s *Session) End(cause error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	l, q, stop, first := s.live, s.queue, s.stop, s.first
	s.live, s.stop, s.first = nil, nil, [2]flight{}
	s.mu.Unlock()
	for _, f := range first {
		if f.cancel != nil {
			f.cancel(cause)
		}
	}
	if l != nil {
		for _, cancel := range l.flights {
			cancel(cause)
		}
		for _, f := range l.subs {
			if f != nil {
				f()
			}
		}
		for _, st := range l.streams {
			st.Close()
		}
		for _, take := range l.asks {
			take(Reply{})
		}
	}
	if q != nil {
		q.Close()
	}
	for _, f := range stop {
		f()
	}
}

func (s *Session) lively() *live {
	if s.live == nil {
		s.live = &live{}
	}
	return s.live
}
