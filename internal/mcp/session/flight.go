package session

import (
	"log/slog"
	"strconv"
)

// Terms are what a request of a session is served by.
type Terms struct {
	Facts       *Facts     // not to be changed
	Level       slog.Level // least level of log messages the client wants
	Initialized bool       // the handshake has happened
}

// Begin notes a request in flight by its raw id, so that it can be cancelled
// and the session is not swept before Finish. It reports false when the id is
// already in flight or the session is over.
func (s *Session) Begin(id string, cancel func(cause error)) (Terms, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.note(id, cancel) {
		return Terms{}, false
	}
	s.busy++
	return Terms{s.facts, s.level, s.initialized}, true
}

// note notes a flight under an id that is not taken. s.mu is held.
func (s *Session) note(id string, cancel func(cause error)) bool {
	free := -1
	for i := range s.first {
		switch f := &s.first[i]; {
		case f.cancel == nil:
			free = i
		case f.id == id:
			return false
		}
	}
	if s.live != nil {
		if _, taken := s.live.flights[id]; taken {
			return false
		}
	}
	if free >= 0 {
		s.first[free] = flight{id, cancel}
		return true
	}
	l := s.lively()
	if l.flights == nil {
		l.flights = make(map[string]func(error))
	}
	l.flights[id] = cancel
	return true
}

// flight is one request in flight.
type flight struct {
	id     string
	cancel func(cause error)
}

// Finish forgets a request in flight; once for each that began.
func (s *Session) Finish(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.Touch()
	for i := range s.first {
		if f := &s.first[i]; f.cancel != nil && f.id == id {
			*f = flight{}
			return
		}
	}
	if s.live == nil {
		return
	}
	if delete(s.live.flights, id); len(s.live.flights) == 0 {
		s.live.flights = nil // a session that is idle again costs what it did
	}
}

// Cancel cancels the request with this raw id and reports whether it was in
// flight.
func (s *Session) Cancel(id string, cause error) bool {
	s.mu.Lock()
	var cancel func(error)
	if s.live != nil {
		cancel = s.live.flights[id]
	}
	for _, f := range s.first {
		if f.cancel != nil && f.id == id {
			cancel = f.cancel
		}
	}
	s.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
	return cancel != nil
}

// Expect makes an id for a request of ours to the client; take is called once
// with its response, or with the zero Reply when the session ends first. It
// reports false when the session is over.
func (s *Session) Expect(take func(Reply)) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return "", false
	}
	l := s.lively()
	if l.asks == nil {
		l.asks = make(map[string]func(Reply))
	}
	l.nextAsk++
	id = "gh-" + strconv.FormatUint(l.nextAsk, 10)
	l.asks[id] = take
	return id, true
}

// Forget drops an expected response; a late one is ignored.
func (s *Session) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		delete(s.live.asks, id)
	}
}

// Respond hands in the client's response to a request of ours and reports
// whether one was expected.
func (s *Session) Respond(id string, r Reply) bool {
	s.mu.Lock()
	var take func(Reply)
	if s.live != nil {
		take = s.live.asks[id]
		delete(s.live.asks, id)
	}
	s.mu.Unlock()
	if take != nil {
		take(r)
	}
	return take != nil
}

// Subscribe notes a subscription to a URI; stop ends it. An earlier one of
// the same URI is stopped and replaced.
func (s *Session) Subscribe(uri string, stop func()) bool {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false
	}
	l := s.lively()
	if l.subs == nil {
		l.subs = make(map[string]func())
	}
	old := l.subs[uri]
	l.subs[uri] = stop
	s.mu.Unlock()
	if old != nil {
		old()
	}
	return true
}

// Unsubscribe ends the subscription to a URI and reports whether there was one.
func (s *Session) Unsubscribe(uri string) bool {
	s.mu.Lock()
	var stop func()
	there := false
	if s.live != nil {
		stop, there = s.live.subs[uri]
		delete(s.live.subs, uri)
	}
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	return there
}

// Suspend stops the subscription to a URI, but remembers it until the session
// may go on with it.
func (s *Session) Suspend(uri string) {
	s.mu.Lock()
	var stop func()
	if s.live != nil && s.live.subs[uri] != nil {
		stop = s.live.subs[uri]
		s.live.subs[uri] = nil
	}
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Resume goes on with a subscription that was suspended, and reports false if
// there is none any more.
func (s *Session) Resume(uri string, stop func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.live == nil {
		return false
	}
	if now, there := s.live.subs[uri]; !there || now != nil {
		return false
	}
	s.live.subs[uri] = stop
	return true
}

// Subscriptions lists the subscribed URIs, and those that are suspended.
func (s *Session) Subscriptions() (active, suspended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		return nil, nil
	}
	for u, stop := range s.live.subs {
		if stop != nil {
			active = append(active, u)
		} else {
			suspended = append(suspended, u)
		}
	}
	return active, suspended
}
