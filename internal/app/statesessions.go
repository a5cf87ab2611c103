package app

import (
	"context"
	"maps"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/state"
)

// sessionsIdle is how long the sessions stay in the tree when no client reads
// them any more.
const sessionsIdle = 30 * time.Second

// connections are those that are sessions of their own: no table knows them, so
// they are counted.
type connections struct {
	mu  sync.Mutex
	all map[string]sessionState
}

// sessionsNow are the sessions there are.
func (t *tree) sessionsNow() map[string]sessionState {
	t.connected.mu.Lock()
	all := maps.Clone(t.connected.all)
	t.connected.mu.Unlock()
	if all == nil {
		all = map[string]sessionState{}
	}
	if t.app.table == nil {
		return all
	}
	t.app.table.All(func(s *session.Session) {
		if !s.Initialized() {
			return
		}
		facts := s.Facts()
		all[sessionKey(s.ID)] = sessionState{
			Principal: facts.Principal, Context: facts.Context, Client: facts.Client,
			Revision: facts.Revision.String(), Since: s.Opened().UTC(),
		}
	})
	return all
}

// session takes in that one has begun or ended.
func (f *follower) session(what string, fact bus.Event) {
	if fact.Lost > 0 {
		f.lookAgain()
	}
	d, ok := bus.Decode[protocol.SessionEvent](fact)
	if !ok || what != "created" && what != "ended" {
		return
	}
	s := sessionState{Client: d.Client, Revision: d.Revision, Since: fact.At.UTC()}
	s.Principal, s.Context = publicstate.Split(fact.Owner)
	if d.Session == "" {
		key := "connection-" + sessionKey(fact.Owner+"\n"+d.Client+"\n"+d.Revision)
		f.setSession(f.tree.connected.count(key, s, what == "created"))
		return
	}
	if what == "created" {
		f.setSession(sessionKey(d.Session), &s)
	} else {
		f.setSession(sessionKey(d.Session), nil)
	}
}

// count counts a connection that has come or gone and gives what is to be shown
// of those that are alike; nil when none is left. One whose credential has
// changed since it came is found by its client.
func (c *connections) count(key string, like sessionState, came bool) (string, *sessionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]sessionState{}
	}
	s, there := c.all[key]
	switch {
	case came && !there:
		s = like
	case !came && !there:
		for k, other := range c.all {
			if other.Client == like.Client && other.Revision == like.Revision {
				key, s = k, other
				break
			}
		}
	}
	if came {
		s.Connections++
	} else {
		s.Connections--
	}
	if s.Connections <= 0 {
		delete(c.all, key)
		return key, nil
	}
	c.all[key] = s
	return key, &s
}

// setSession has the tree changed, if a client reads it.
func (f *follower) setSession(key string, s *sessionState) {
	if f.tree.looked.Wanted() {
		f.newSessions[key] = s
	}
}

// lookAgain finds out which sessions there are, after facts of some were lost.
func (f *follower) lookAgain() {
	if !f.tree.looked.Wanted() {
		return
	}
	clear(f.newSessions)
	if _, err := f.tree.sessions.Update(context.Background(), state.Any, func(v *map[string]sessionState) error {
		*v = f.tree.sessionsNow()
		return nil
	}); err != nil {
		f.tree.app.log.Warn("sessions are not shown", "err", err)
	}
}
