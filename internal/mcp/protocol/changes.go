package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// changeDelay is how long changes are collected before clients are notified.
const changeDelay = 20 * time.Millisecond

// changes notifies clients when one of their lists has changed. It compares
// fingerprints of the lists, so that a client gets no notification for an unchanged
// list.
type changes struct {
	signal chan struct{} // holds a token while offers have changed

	mu        sync.Mutex
	pipes     map[*session.Session]*Pipe // sessions that are in no table
	listeners map[*listener]struct{}
}

// stamps are the fingerprints of the lists that have a list_changed notification.
type stamps = [3]uint64

// listNotes are the notifications of the lists, in the order of stamps.
var listNotes = [3]string{
	"notifications/tools/list_changed",
	"notifications/prompts/list_changed",
	"notifications/resources/list_changed",
}

func (c *changes) init() {
	c.signal = make(chan struct{}, 1)
	c.pipes = make(map[*session.Session]*Pipe)
	c.listeners = make(map[*listener]struct{})
}

// Changed reports that the offers of modules have changed. It never blocks.
func (e *Engine) Changed() {
	select {
	case e.changes.signal <- struct{}{}:
	default:
	}
}

func (c *changes) notifyLoop(ctx context.Context, e *Engine) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.signal:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(changeDelay):
		}
		e.work.Go(func() { e.watches.renew(ctx, e) })
		c.notifyAll(ctx, e)
	}
}

func (c *changes) notifyAll(ctx context.Context, e *Engine) {
	c.mu.Lock()
	var sessions []*session.Session
	for s := range c.pipes {
		sessions = append(sessions, s)
	}
	var listeners []*listener
	for l := range c.listeners {
		listeners = append(listeners, l)
	}
	c.mu.Unlock()
	if e.sessions != nil {
		e.sessions.All(func(s *session.Session) { sessions = append(sessions, s) })
	}
	for _, s := range sessions {
		e.notifySession(ctx, s)
	}
	for _, l := range listeners {
		l.compareLists(ctx)
	}
}

func (e *Engine) notifySession(ctx context.Context, s *session.Session) {
	if !s.Initialized() {
		return
	}
	f := s.Facts()
	now, view := e.stampsOf(ctx, &f)
	active, suspended := s.Subscriptions()
	for _, uri := range active {
		if !hasResource(view, uri) {
			s.Suspend(uri)
		}
	}
	if view != nil && len(suspended) > 0 {
		e.work.Go(func() { e.restoreSubscriptions(ctx, s, &f, view, suspended) })
	}
	old := s.SwapListStamps(now)
	if old == (stamps{}) {
		return // it has only just joined and asked for nothing yet
	}
	for i := range now {
		if now[i] != old[i] {
			s.Notify(appendNote(nil, listNotes[i], nil))
		}
	}
}

// hasResource reports whether a view contains the resource of a URI. A nil view, of a
// caller that may use no context, contains none. Callers that may not read a resource
// get no notifications about it.
func hasResource(v *views.View, uri string) bool {
	if v == nil {
		return false
	}
	entry, _ := v.Resource(uri)
	return entry != nil
}

// noAccessStamps are the stamps of a caller whose context was removed, or who may no
// longer use it.
var noAccessStamps = stamps{1, 1, 1}

// stampsOf returns the fingerprints of the caller's lists, and the caller's view; nil
// if there is none. Resources and templates share one fingerprint, because they share
// one notification.
func (e *Engine) stampsOf(ctx context.Context, f *session.Facts) (stamps, *views.View) {
	f.Cut = e.opts.Views.Cut(f.Caller)
	v, err := e.opts.Views.View(ctx, &f.Caller, f.Cut)
	if err != nil {
		return noAccessStamps, nil
	}
	return stamps{
		v.Stamp(views.Tools), v.Stamp(views.Prompts),
		v.Stamp(views.Resources)*31 + v.Stamp(views.Templates),
	}, v
}

// ElicitationComplete tells a session that what a URL that it was asked to visit is for has been done. of is
// tool.Caller.Session or Connection. Only revision 2025-11-25 has the notification; other sessions get none.
func (e *Engine) ElicitationComplete(of string, params json.RawMessage) {
	notify := func(s *session.Session) {
		f := s.Facts()
		if (s.ID == of || s.ID == "" && f.Connection == of) && f.Revision == mcpversion.V20251125 {
			s.Notify(appendNote(nil, "notifications/elicitation/complete", params))
		}
	}
	e.changes.mu.Lock()
	connections := slices.Collect(maps.Keys(e.changes.pipes))
	e.changes.mu.Unlock()
	for _, s := range connections {
		notify(s)
	}
	if e.sessions != nil {
		e.sessions.All(notify)
	}
}

// sessionOpened stores the fingerprints of the lists that a new session has seen, and
// registers the messages that it gets if it misses notifications.
func (e *Engine) sessionOpened(s *session.Session) {
	f := s.Facts()
	s.OnLoss(resyncMessages)
	now, _ := e.stampsOf(e.base, &f)
	if newer := s.SwapListStamps(now); newer != (stamps{}) {
		s.SwapListStamps(newer)
	}
	e.publishSession(SessionCreated, s, false)
}

// Adopted takes over a session that was on another host: it follows the resources again, and tells the client to read
// them and the lists again, because it is not known what the client has missed.
func (e *Engine) Adopted(s *session.Session, uris []string) {
	e.sessionOpened(s)
	for _, note := range listNotes {
		s.Notify(appendNote(nil, note, nil))
	}
	if len(uris) == 0 {
		return
	}
	for _, uri := range uris {
		s.Remember(uri)
	}
	f := s.Facts()
	if _, view := e.stampsOf(e.base, &f); view != nil {
		e.work.Go(func() { e.restoreSubscriptions(e.base, s, &f, view, uris) })
	}
}

// Revoked ends all sessions and subscriptions that were opened with a credential of a
// principal; with an empty credential, all of the principal's. It also closes
// connections that authenticated with it, because their next message would be served
// under the same identity. Standard input and output stay open: they use no credential.
func (e *Engine) Revoked(principal, credential string) {
	hit := func(c *tool.Caller) bool {
		return c.Principal == principal && (credential == "" || c.Credential == credential)
	}
	if e.sessions != nil {
		e.sessions.All(func(s *session.Session) {
			if f := s.Facts(); hit(&f.Caller) {
				e.sessions.End(s, session.ErrRevoked)
			}
		})
	}
	c := &e.changes
	var pipes []*Pipe
	var listeners []*listener
	c.mu.Lock()
	for s, p := range c.pipes {
		if f := s.Facts(); hit(&f.Caller) || hit(&p.who.Caller) {
			pipes = append(pipes, p)
		}
	}
	for l := range c.listeners {
		if hit(&l.r.facts.Caller) {
			listeners = append(listeners, l)
		}
	}
	c.mu.Unlock()
	for _, p := range pipes {
		if hit(&p.who.Caller) && p.who.Prove != nil {
			p.Close(session.ErrRevoked) // the next message would be served under the connection's identity
			continue
		}
		p.sess.End(session.ErrRevoked)
	}
	for _, l := range listeners {
		l.finishListening()
	}
}

// NotifyShutdown ends every subscription with its result, and returns after the clients have received
// it, or when ctx is done. A host calls it before it closes connections.
func (e *Engine) NotifyShutdown(ctx context.Context) {
	c := &e.changes
	var sessions []*session.Session
	var listeners []*listener
	c.mu.Lock()
	for s := range c.pipes {
		sessions = append(sessions, s)
	}
	for l := range c.listeners {
		listeners = append(listeners, l)
	}
	c.mu.Unlock()
	if e.sessions != nil {
		e.sessions.All(func(s *session.Session) { sessions = append(sessions, s) })
	}
	pause := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
			return true
		}
	}
	var each sync.WaitGroup // in parallel, because a client that does not read delays only its own subscription
	for _, l := range listeners {
		each.Go(func() {
			for l.pending.isBusy() && pause() {
			}
			l.finishListening()
		})
	}
	for _, s := range sessions {
		for !s.Idle() && pause() {
		}
	}
	told := make(chan struct{})
	go func() {
		each.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-ctx.Done():
	}
}

// SessionEnded reports that a session of the table has ended; see session.Options.
func (e *Engine) SessionEnded(s *session.Session, cause error) {
	e.opts.Log.Debug("session ended", "client", s.Facts().Client, "cause", cause)
	e.publishSession(SessionEnded, s, errors.Is(cause, session.ErrMoved))
}

// resyncMessages returns the notifications that make a client read everything again. A
// client gets them if it missed messages, because it is not known which.
func resyncMessages(s *session.Session) (msgs [][]byte) {
	for _, n := range listNotes {
		msgs = append(msgs, appendNote(nil, n, nil))
	}
	active, _ := s.Subscriptions()
	for _, uri := range active {
		msgs = append(msgs, appendNote(nil, "notifications/resources/updated", updatedParams(uri, nil)))
	}
	return msgs
}

// Topics of sessions.
const (
	SessionCreated = bus.Topic[SessionEvent]("session.created")
	SessionEnded   = bus.Topic[SessionEvent]("session.ended")
	RootsChanged   = bus.Topic[SessionEvent]("roots.changed")
)

// SessionEvent describes the session of an event.
type SessionEvent struct {
	Session    string `json:"session,omitempty"`    // "" for a connection that is a session of its own
	Connection string `json:"connection,omitempty"` // with a session "": tool.Caller.Connection
	Credential string `json:"credential,omitempty"`
	Context    string `json:"context,omitempty"`
	Client     string `json:"client,omitempty"`
	Revision   string `json:"revision"`
	Moved      bool   `json:"moved,omitempty"` // it goes on at another node of the cluster
}

// publishSession publishes an event about a session.
func (e *Engine) publishSession(topic bus.Topic[SessionEvent], s *session.Session, moved bool) {
	f := s.Facts()
	event, _ := topic.Event(SessionEvent{
		s.ID, f.Connection, f.Credential, f.Context, f.Client, f.Revision.String(), moved,
	})
	event.Owner = f.Owner
	e.opts.Bus.Publish(event)
}
