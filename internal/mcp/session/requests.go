package session

import (
	"log/slog"
	"strconv"
)

// Terms are the session values that apply to one request.
type Terms struct {
	Facts       *Facts     // must not be changed
	Level       slog.Level // minimum level of log messages for the client
	Initialized bool       // the handshake is complete
}

// BeginRequest registers a running request by its raw ID, so that it can be cancelled and the session
// does not end as idle before FinishRequest. It returns false if a request with this ID is running or
// the session has ended.
func (s *Session) BeginRequest(id string, cancel func(cause error)) (Terms, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.addFlight(id, cancel) {
		return Terms{}, false
	}
	s.busy++
	return Terms{s.known(), slog.Level(s.level), s.initialized}, true
}

// addFlight registers a request under an unused ID. The caller holds s.mu.
func (s *Session) addFlight(id string, cancel func(cause error)) bool {
	l := s.extraState()
	free := -1
	for i := range l.first {
		switch f := &l.first[i]; {
		case f.cancel == nil:
			free = i
		case f.id == id:
			return false
		}
	}
	if _, taken := l.flights[id]; taken {
		return false
	}
	if free >= 0 {
		l.first[free] = inFlight{id, cancel}
		return true
	}
	if l.flights == nil {
		l.flights = make(map[string]func(error))
	}
	l.flights[id] = cancel
	return true
}

// inFlight is one running request.
type inFlight struct {
	id     string
	cancel func(cause error)
}

// FinishRequest removes a running request; call it once for each BeginRequest that succeeded.
func (s *Session) FinishRequest(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.Touch()
	if s.extra == nil {
		return
	}
	for i := range s.extra.first {
		if f := &s.extra.first[i]; f.cancel != nil && f.id == id {
			*f = inFlight{}
			return
		}
	}
	if delete(s.extra.flights, id); len(s.extra.flights) == 0 {
		s.extra.flights = nil // an idle session shrinks to its original size
	}
}

// Calls returns how many requests run.
func (s *Session) Calls() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extra == nil {
		return 0
	}
	for _, f := range s.extra.first {
		if f.cancel != nil {
			n++
		}
	}
	return n + len(s.extra.flights)
}

// Cancel cancels the request with this raw ID and reports whether it was running.
func (s *Session) Cancel(id string, cause error) bool {
	s.mu.Lock()
	var cancel func(error)
	if s.extra != nil {
		cancel = s.extra.flights[id]
		for _, f := range s.extra.first {
			if f.cancel != nil && f.id == id {
				cancel = f.cancel
			}
		}
	}
	s.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
	return cancel != nil
}

// Expect returns an ID for a request of the server to the client. take is called once with its
// response, or with the zero Reply if the session ends first. Expect returns false if the session has
// ended.
func (s *Session) Expect(take func(Reply)) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return "", false
	}
	l := s.extraState()
	if l.replies == nil {
		l.replies = make(map[string]func(Reply))
	}
	l.nextReply++
	id = "gh-" + strconv.FormatUint(l.nextReply, 10)
	l.replies[id] = take
	return id, true
}

// ForgetExpected drops an expected response; a late one is ignored.
func (s *Session) ForgetExpected(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extra != nil {
		delete(s.extra.replies, id)
	}
}

// Respond passes on the client's response to a request of the server and reports whether one was
// expected.
func (s *Session) Respond(id string, r Reply) bool {
	s.mu.Lock()
	var take func(Reply)
	if s.extra != nil {
		take = s.extra.replies[id]
		delete(s.extra.replies, id)
	}
	s.mu.Unlock()
	if take != nil {
		take(r)
	}
	return take != nil
}

// Subscribe registers a subscription to a URI; stop ends it. It stops and replaces an
// earlier subscription to the same URI. It returns false if the session has ended.
func (s *Session) Subscribe(uri string, stop func()) bool {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false
	}
	l := s.extraState()
	if l.subs == nil {
		l.subs = make(map[string]func())
	}
	old := l.subs[uri]
	l.subs[uri] = stop
	s.changed.Store(true)
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
	if s.extra != nil {
		stop, there = s.extra.subs[uri]
		delete(s.extra.subs, uri)
		s.changed.Store(there || s.changed.Load())
	}
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	return there
}

// Suspend stops the subscription to a URI, but remembers it until Resume.
func (s *Session) Suspend(uri string) {
	s.mu.Lock()
	var stop func()
	if s.extra != nil && s.extra.subs[uri] != nil {
		stop = s.extra.subs[uri]
		s.extra.subs[uri] = nil
	}
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Remember adds a subscription that is suspended, of a session that was on another host.
func (s *Session) Remember(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.extraState()
	if l.subs == nil {
		l.subs = make(map[string]func())
	}
	if _, there := l.subs[uri]; !there {
		l.subs[uri] = nil
	}
}

// Resume continues a suspended subscription. It returns false if there is none.
func (s *Session) Resume(uri string, stop func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.extra == nil {
		return false
	}
	if now, there := s.extra.subs[uri]; !there || now != nil {
		return false
	}
	s.extra.subs[uri] = stop
	return true
}

// Subscriptions lists the subscribed URIs, and those that are suspended.
func (s *Session) Subscriptions() (active, suspended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extra == nil {
		return nil, nil
	}
	for u, stop := range s.extra.subs {
		if stop != nil {
			active = append(active, u)
		} else {
			suspended = append(suspended, u)
		}
	}
	return active, suspended
}
