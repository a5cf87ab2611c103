package protocol

import (
	"context"

	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// UseContext moves the session of a running call to another context, as if it had named that one at
// initialize, and tells the client which of its lists have changed. The error is a *tool.Refusal.
func (e *Engine) UseContext(ctx context.Context, who tool.Caller, name string) error {
	who.Context = name
	who.Owner = e.opts.Views.Owner(&who)
	if _, err := e.opts.Views.View(ctx, &who, e.opts.Views.Cut(who)); err != nil {
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error()}
	}
	s := e.sessionOf(&who)
	if s == nil {
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this client has no session, so each of its requests names its context",
			Next:    "It can connect to /mcp/" + name + ".",
		}
	}
	if f := s.Facts(); f.Pinned && f.Context != name {
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "this client is bound to the context " + f.Context + " by its credential or its address",
		}
	}
	s.Move(name, who.Owner)
	e.notifySession(ctx, s)
	return nil
}

// sessionOf returns the session of a caller; nil if it has none.
func (e *Engine) sessionOf(who *tool.Caller) *session.Session {
	if who.Session != "" && e.sessions != nil {
		if s, ok := e.sessions.Get(who.Session, who.Principal); ok {
			return s
		}
		return nil
	}
	e.changes.mu.Lock()
	defer e.changes.mu.Unlock()
	for s := range e.changes.pipes {
		if f := s.Known(); who.Connection != "" && f.Connection == who.Connection && f.Principal == who.Principal &&
			s.Initialized() {
			return s
		}
	}
	return nil
}
