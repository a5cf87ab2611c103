package app

import (
	"maps"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/modules/publicstate"
)

// membersIdle is how long sessions, processes and sandboxes stay in the tree after the last client has read them.
const membersIdle = 30 * time.Second

// connectionCounter counts the connections that are sessions of their own, because no table contains them.
type connectionCounter struct {
	mu  sync.Mutex
	all map[string]sessionState
}

// sessionsNow returns the current sessions.
func (l *liveTree) sessionsNow() map[string]sessionState {
	l.connected.mu.Lock()
	all := map[string]sessionState{}
	maps.Copy(all, l.connected.all)
	l.connected.mu.Unlock()
	if l.app.table == nil {
		return all
	}
	l.app.table.All(func(s *session.Session) {
		if !s.Initialized() {
			return
		}
		facts := s.Facts()
		all[sessionKey(s.ID)] = sessionState{
			Principal: facts.Principal, Context: facts.Context, Client: facts.Client,
			Revision: facts.Revision.String(), Since: s.Opened().UTC(), Node: l.app.nodeName(),
		}
	})
	return all
}

// session handles an event that a session has begun or ended.
func (e *eventFollower) session(what string, fact bus.Event) {
	if fact.Lost > 0 {
		e.lookAgain()
	}
	d, ok := bus.Decode[protocol.SessionEvent](fact)
	if !ok || what != "created" && what != "ended" {
		return
	}
	s := sessionState{Client: d.Client, Revision: d.Revision, Since: fact.At.UTC(), Node: fact.Node}
	if s.Node == "" {
		s.Node = e.tree.app.nodeName()
	}
	s.Principal, s.Context = publicstate.Split(fact.Owner)
	switch {
	case d.Session == "" && fact.Node != "":
		e.sessions = true // that node counts them
		return
	case d.Session == "":
		key := "connection-" + sessionKey(s.Node+fact.Owner+"\n"+d.Client+"\n"+d.Revision)
		e.setSession(e.tree.connected.addOrRemove(key, s, what == "created"))
	case what == "created":
		e.setSession(sessionKey(d.Session), &s)
	default:
		e.setSession(sessionKey(d.Session), nil)
	}
}

// addOrRemove counts a connection that has opened or closed and returns the state to show for equal connections,
// or nil if none is left. A connection whose credential has changed since it opened is found by its client.
func (c *connectionCounter) addOrRemove(key string, like sessionState, came bool) (string, *sessionState) {
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

// setSession changes the tree, if a client reads it.
func (e *eventFollower) setSession(key string, s *sessionState) {
	if e.tree.looked.Wanted() {
		e.newSessions[key] = s
	}
}

// lookAgain lists the current sessions again, after events were lost.
func (e *eventFollower) lookAgain() {
	clear(e.newSessions)
	if err := e.tree.looked.Refresh(); err != nil {
		e.tree.app.log.Warn("sessions are not shown", "err", err)
	}
}
