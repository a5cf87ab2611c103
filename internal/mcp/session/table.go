package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/operator"
)

// The causes for which a session ends.
var (
	ErrIdle   = errors.New("the session was idle for too long")
	ErrClosed = errors.New("the client ended the session")
	ErrStop   = errors.New("the host is stopping")
	// ErrExpired and ErrRevoked end the sessions that a credential has opened.
	ErrExpired = errors.New("the credential has expired")
	ErrRevoked = errors.New("the credential was revoked")
	// ErrMoved ends a session that another node of the cluster has adopted.
	ErrMoved = errors.New("another node has adopted the session")
)

// Options configures a Table.
type Options struct {
	IdleTTL time.Duration // 0 means 30 minutes
	Sweep   time.Duration // 0 means 30 seconds
	Max     int           // sessions at once, which principals share; 0 means 100,000
	// Administrator reports who may open the sessions that are kept for
	// administrators; nil means no caller.
	Administrator operator.Func
	Kept          int64 // bytes of messages for clients that come back, which principals share; 0 means 64 MiB
	// Node begins the ids of sessions, so that other nodes of a cluster know where they are; "" begins none.
	Node string
	// Ended, if set, is called for every session that has ended.
	Ended func(s *Session, cause error)
}

// Table holds the sessions with an ID. It is safe for concurrent use.
type Table struct {
	opts   Options
	shares *limit.Shares
	kept   *limit.Shares
	mu     sync.RWMutex
	byID   map[string]*Session
	shared factsPool
}

// NewTable returns an empty table.
func NewTable(o Options) *Table {
	if o.IdleTTL == 0 {
		o.IdleTTL = 30 * time.Minute
	}
	if o.Sweep == 0 {
		o.Sweep = 30 * time.Second
	}
	if o.Max == 0 {
		o.Max = 100_000
	}
	return &Table{
		opts:   o,
		shares: limit.NewShares(limit.Resource{Name: "sessions", Total: int64(o.Max), Administrator: o.Administrator}),
		kept: limit.NewShares(limit.Resource{
			Name: "bytes of kept messages", Total: cmp.Or(o.Kept, 64<<20), Administrator: o.Administrator,
		}),
		byID: make(map[string]*Session),
	}
}

// Open makes a session with a new id, a version 4 UUID from the system's random source.
// The error is a *limit.Busy if the principal has its share of the sessions.
func (t *Table) Open(f Facts) (*Session, error) {
	held, err := t.shares.Acquire(&f.Caller, 1)
	if err != nil {
		return nil, err
	}
	f.Session = newID()
	if t.opts.Node != "" {
		f.Session = t.opts.Node + "-" + f.Session
	}
	s := New(f)
	s.ID = f.Session
	s.join(t, held)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[s.ID] = s
	return s, nil
}

// Adopt makes a session with the id that it had on another host, initialized. fresh is false if it is here already.
func (t *Table) Adopt(id string, f Facts) (s *Session, fresh bool, err error) {
	held, err := t.shares.Acquire(&f.Caller, 1)
	if err != nil {
		return nil, false, err
	}
	f.Session = id
	s = New(f)
	s.ID, s.initialized = id, true
	s.join(t, held)
	t.mu.Lock()
	old := t.byID[id]
	if old == nil {
		t.byID[id] = s
	}
	t.mu.Unlock()
	if old != nil {
		s.leave()
		return old, false, nil
	}
	return s, true, nil
}

// Has reports whether a session is on this node, for any caller.
func (t *Table) Has(id string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id] != nil
}

// Get returns the session with an ID and records activity. It returns only sessions that the principal
// has opened. The caller must check that the principal is authenticated now: a session may outlive the
// credential it was opened with, if another one is used.
func (t *Table) Get(id, principal string) (*Session, bool) {
	t.mu.RLock()
	s := t.byID[id]
	t.mu.RUnlock()
	if s == nil {
		return nil, false
	}
	if s.principal() != principal {
		return nil, false
	}
	s.Touch()
	return s, true
}

// End ends a session and reports whether it was in the table.
func (t *Table) End(s *Session, cause error) bool {
	t.mu.Lock()
	_, there := t.byID[s.ID]
	delete(t.byID, s.ID)
	t.mu.Unlock()
	s.End(cause)
	if there {
		s.leave()
	}
	if there && t.opts.Ended != nil {
		t.opts.Ended(s, cause)
	}
	return there
}

// Len returns the number of sessions.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

// All calls f for every session, without holding the lock.
func (t *Table) All(f func(*Session)) {
	t.mu.RLock()
	all := make([]*Session, 0, len(t.byID))
	for _, s := range t.byID {
		all = append(all, s)
	}
	t.mu.RUnlock()
	for _, s := range all {
		f(s)
	}
}

// Run ends idle sessions until ctx is done, then ends them all.
func (t *Table) Run(ctx context.Context) error {
	tick := time.NewTicker(t.opts.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			t.All(func(s *Session) { t.End(s, ErrStop) })
			return nil
		case <-tick.C:
			t.endIdle(clock())
		}
	}
}

// endIdle ends sessions that were idle for too long, and disconnects streams whose
// credential has expired. A session with an open request or stream is not idle.
// Sessions that never opened a stream are not ended earlier, because active clients may
// only ever POST.
func (t *Table) endIdle(now time.Time) {
	limit := int64(uptime() - t.opts.IdleTTL)
	rested := int64(uptime() - t.opts.Sweep)
	t.All(func(s *Session) {
		s.mu.Lock()
		until, busy := s.some().Until, s.busy
		if busy == 0 && s.active.Load() < rested {
			s.pack()
		}
		s.mu.Unlock()
		if !until.IsZero() && now.After(until) {
			s.disconnectStreams()
		}
		if busy == 0 && s.active.Load() < limit {
			t.End(s, ErrIdle)
		}
	})
}

// newID returns a version 4 UUID.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
