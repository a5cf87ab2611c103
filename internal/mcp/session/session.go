// Package session keeps the state of a legacy client between its requests: the caller, the client's
// capabilities, its streams, and the open requests in both directions.
//
// It knows no method and no transport. A session belongs to the principal that opened it, lasts until
// it is ended or idle for too long, and costs about 250 bytes and no goroutine while it is idle.
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

// Facts holds what is known about the caller of one request: from the session, or from the request
// alone if there is no session.
type Facts struct {
	tool.Caller
	Cut      permit.Cut
	Revision mcpversion.Revision
	// Pinned means that the credential or the transport named the context, so that the client cannot change it.
	Pinned bool
	Until  time.Time // when the credential expires, which ends streams but not jobs. Zero means never
}

// Session is one legacy client's session. It is safe for concurrent use.
type Session struct {
	ID string // "" on a connection with its own session

	opened int64        // unix nanoseconds
	table  *Table       // nil on a connection with its own session
	active atomic.Int64 // the last sign of life, in nanoseconds of uptime

	// A call locks mu three times: when the session is looked up, when the call begins and when it
	// ends.
	mu          sync.Mutex
	busy        int32 // open requests and streams
	initialized bool
	ended       bool
	counted     bool         // among the sessions of its table
	holder      bool         // as those of an administrator
	facts       *Facts       // never changed, only replaced, because requests share it; nil while it is in shared and wire
	shared      *sharedFacts // what other sessions have as well; see pack
	wire        string
	queue       *Stream // messages outside any request; created on first use
	extra       *extra  // requests that run, and questions; created on first use
	resync      func(*Session) [][]byte
	seen        [3]uint64 // what the client last knew of its lists
	level       int32     // minimum level of log messages for the client, a slog.Level
	changed     atomic.Bool
}

// TakeChanged reports whether what another node would have to know of the session has changed since the last call.
func (s *Session) TakeChanged() bool { return s.changed.Load() && s.changed.Swap(false) }

// extra is the part of a session that an idle one does not need.
type extra struct {
	first     [2]inFlight                  // running requests, up to two
	stop      []func()                     // called once at the end
	flights   map[string]func(cause error) // by raw request ID: cancels it
	replies   map[string]func(Reply)       // by the ID of a request to the client: receives its response
	streams   map[uint64]*Stream           // answers that stream, for resuming
	nextReply uint64
	nextID    uint64
	subs      map[string]func() // by URI: stops the subscription; nil while it is suspended
}

// Reply is a client's response to a request of the server.
type Reply struct {
	Result []byte // raw result object; nil if Error is set
	Error  []byte // raw error object
}

// New returns a session for one connection. A Table makes the sessions with an id.
func New(f Facts) *Session {
	s := &Session{facts: &f, level: int32(slog.LevelInfo)}
	s.Touch()
	s.opened = clock().UnixNano()
	return s
}

// Opened returns when the session was made.
func (s *Session) Opened() time.Time { return time.Unix(0, s.opened) }

// Touch records activity, which restarts the idle time.
func (s *Session) Touch() { s.active.Store(int64(uptime())) }

// clock is replaced by tests, and start is the moment from which intervals are measured. The monotonic
// clock decides which sessions are idle, because the time of day can be set while the host runs, which
// must neither end all sessions nor keep them.
var (
	clock = time.Now
	start = clock()
)

func uptime() time.Duration { return clock().Sub(start) }

// KeepAlive keeps the session from ending as idle until release is called.
func (s *Session) KeepAlive() (release func()) {
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

// Facts returns a copy of the facts of the handshake.
func (s *Session) Facts() Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copyFacts()
}

// Known is Facts without a copy: the caller must not change it.
func (s *Session) Known() *Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known()
}

// Revision returns that of the facts.
func (s *Session) Revision() mcpversion.Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some().Revision
}

// Initialize sets the facts. It returns false if the session was initialized before.
func (s *Session) Initialize(f Facts) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.initialized {
		return false
	}
	f.Session = s.ID
	s.facts, s.initialized = &f, true
	s.pack()
	return true
}

// Authenticated records the credential that the principal has used this time, and when it expires.
// Streams of the session end with the most recent credential. The result is Known with that credential.
func (s *Session) Authenticated(c *tool.Caller, until time.Time) *Facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.known()
	if was.Credential == c.Credential && was.Until.Equal(until) && slices.Equal(was.Roles, c.Roles) &&
		slices.Equal(was.Scopes, c.Scopes) {
		return was
	}
	f := *was
	f.Roles, f.Scopes, f.Credential, f.Until = c.Roles, c.Scopes, c.Credential, until
	s.facts = &f
	return s.facts
}

// Move sets the context and the owner of the session's further requests. Those that run keep theirs, and the
// subscriptions are suspended.
func (s *Session) Move(context, owner string) {
	active, _ := s.Subscriptions()
	for _, uri := range active {
		s.Suspend(uri)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Store(true)
	f := s.copyFacts()
	f.Context, f.Owner = context, owner
	s.facts = &f
}

// disconnectStreams closes the connections that read the session's streams, because the
// credential has expired. The session stays for a request with a new credential.
func (s *Session) disconnectStreams() {
	s.mu.Lock()
	var all []*Stream
	if s.queue != nil {
		all = append(all, s.queue)
	}
	if s.extra != nil {
		for _, st := range s.extra.streams {
			all = append(all, st)
		}
	}
	s.mu.Unlock()
	for _, st := range all {
		st.disconnect()
	}
}

// Initialized reports whether the handshake is complete.
func (s *Session) Initialized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initialized
}

// Level returns the minimum level of log messages for the client.
func (s *Session) Level() slog.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slog.Level(s.level)
}

// SetLevel sets the minimum level of log messages.
func (s *Session) SetLevel(l slog.Level) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level != int32(l) {
		s.changed.Store(true)
	}
	s.level = int32(l)
}

// SwapListStamps stores the fingerprints of the lists that the client knows and returns the
// previous ones.
func (s *Session) SwapListStamps(now [3]uint64) (old [3]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.seen = s.seen, now
	return old
}

// OnEnd runs f when the session ends, at once if it has ended.
func (s *Session) OnEnd(f func()) {
	s.mu.Lock()
	if !s.ended {
		l := s.extraState()
		l.stop = append(l.stop, f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f()
}

// Ended reports whether the session has ended.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// End ends the session: it cancels running requests, closes the streams and answers
// expected replies with the zero Reply. Later calls do nothing.
func (s *Session) End(cause error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	l, q := s.extra, s.queue
	s.extra = nil
	s.mu.Unlock()
	if l != nil {
		for _, f := range l.first {
			if f.cancel != nil {
				f.cancel(cause)
			}
		}
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
			st.discard()
		}
		for _, take := range l.replies {
			take(Reply{})
		}
	}
	if q != nil {
		q.Close()
		q.discard()
	}
	if l == nil {
		return
	}
	for _, f := range l.stop {
		f()
	}
}

func (s *Session) extraState() *extra {
	if s.extra == nil {
		s.extra = &extra{}
	}
	return s.extra
}
