package session

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	"gatehouse/internal/access/limit"
)

// sharedFacts are the facts that many idle sessions have in common: all but the id of the session and its wire. One
// principal has few different ones, and the facts are most of the memory of a session.
type sharedFacts struct {
	facts Facts // never changed
	key   [sha256.Size]byte
	refs  int // the pool's
}

// factsPool has the shared facts of the sessions of a table. Its zero value is ready. Its lock is taken while that of a
// session is held.
type factsPool struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*sharedFacts
}

// get returns the shared facts that equal f, which has neither session nor wire; nil if they cannot be compared.
func (p *factsPool) get(f Facts) *sharedFacts {
	raw, err := json.Marshal(f)
	if err != nil {
		return nil
	}
	key := sha256.Sum256(raw)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.all[key]
	if s == nil {
		if p.all == nil {
			p.all = map[[sha256.Size]byte]*sharedFacts{}
		}
		s = &sharedFacts{facts: f, key: key}
		p.all[key] = s
	}
	s.refs++
	return s
}

func (p *factsPool) release(s *sharedFacts) {
	if s == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.refs--; s.refs == 0 {
		delete(p.all, s.key)
	}
}

// pack drops what an idle session can do without: its own copy of the facts, and the place of requests. s.mu is held.
func (s *Session) pack() {
	if l := s.extra; l != nil && l.first[0].cancel == nil && l.first[1].cancel == nil && l.stop == nil &&
		len(l.flights) == 0 && len(l.replies) == 0 &&
		len(l.streams) == 0 && len(l.subs) == 0 && l.nextID == 0 && l.nextReply == 0 {
		s.extra = nil
	}
	if s.table == nil || s.facts == nil || !s.counted {
		return
	}
	f := *s.facts
	wire := f.Wire
	f.Session, f.Wire = "", ""
	if shared := s.table.shared.get(f); shared != nil {
		s.table.shared.release(s.shared)
		s.facts, s.shared, s.wire = nil, shared, wire
	}
}

// copyFacts returns a copy of the facts. s.mu is held.
func (s *Session) copyFacts() Facts {
	if s.facts != nil {
		return *s.facts
	}
	f := s.shared.facts
	f.Session, f.Wire = s.ID, s.wire
	return f
}

// known returns the facts. s.mu is held.
func (s *Session) known() *Facts {
	if s.facts == nil {
		f := s.copyFacts()
		s.facts = &f
	}
	return s.facts
}

// some returns the facts, perhaps without the session and its wire. s.mu is held.
func (s *Session) some() *Facts {
	if s.facts == nil {
		return &s.shared.facts
	}
	return s.facts
}

func (s *Session) principal() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some().Principal
}

// join counts a new session among those of a table.
func (s *Session) join(t *Table, held limit.Held) {
	s.table, s.counted = t, true
	s.holder = held.Keep().Administrator
}

// leave counts the session no longer. It may be called more than once.
func (s *Session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.counted {
		return
	}
	s.counted = false
	s.known() // shared facts are those of sessions that are counted
	s.table.shared.release(s.shared)
	s.shared = nil
	s.table.shares.Release(limit.Holder{Principal: s.facts.Principal, Administrator: s.holder}, 1)
}
