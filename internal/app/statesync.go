package app

import (
	"context"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/module"
)

// subscriptionSync brings a caller's subscriptions up to date after a tool that requests it. Calls are followed
// only while there is such a tool, because dispatch does not publish calls without followers.
type subscriptionSync struct {
	tree   *liveTree
	stale  chan struct{} // holds a token when offers have changed
	facts  chan bus.Event
	follow bool
	tools  map[qualifiedTool]bool
}

// qualifiedTool identifies a tool in the events of calls.
type qualifiedTool struct{ Module, Name string }

func (l *liveTree) syncs() {
	s := &subscriptionSync{tree: l, stale: make(chan struct{}, 1), facts: make(chan bus.Event)}
	s.stale <- struct{}{}
	l.app.host.OnChange(func(module.Audience) {
		select {
		case s.stale <- struct{}{}:
		default:
		}
	})
	l.app.addPart("synchronized subscriptions", s.syncLoop)
}

func (s *subscriptionSync) syncLoop(ctx context.Context) error {
	done := make(chan struct{})
	close(done)
	defer func() { <-done }()
	for {
		select {
		case <-s.stale:
			s.look(ctx)
			s.tree.watches.Recheck() // each client sees the packages and modules whose tools it may call
			if len(s.tools) > 0 && !s.follow {
				s.follow, done = true, make(chan struct{})
				facts := s.tree.app.bus.Follow(ctx, string(dispatch.CallFinished), factQueue)
				go func() {
					defer close(done)
					for f := range facts {
						select {
						case s.facts <- f:
						case <-ctx.Done():
						}
					}
				}()
			}
		case f := <-s.facts:
			s.handleEvent(f)
		case <-ctx.Done():
			return nil
		}
	}
}

// look shows the modules, and finds the tools that request it.
func (s *subscriptionSync) look(ctx context.Context) {
	s.tools = map[qualifiedTool]bool{}
	all := s.tree.app.host.Statuses(ctx)
	s.tree.showModules(all)
	for _, m := range all {
		if m.Err != nil {
			continue
		}
		for i := range m.Offered.Offer.Tools {
			if t := &m.Offered.Offer.Tools[i]; t.Sync {
				s.tools[qualifiedTool{m.Module, t.Name}] = true
			}
		}
	}
}

func (s *subscriptionSync) handleEvent(f bus.Event) {
	call, ok := dispatch.CallFinished.Decode(f)
	if !ok || call.Method != "tools/call" || call.Outcome != "ok" || !s.tools[qualifiedTool{call.Module, call.Name}] {
		return
	}
	s.tree.watches.Sync(f.Owner, f.Session)
}
