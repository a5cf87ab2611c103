package app

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/state"
)

const (
	factQueue   = 4096                  // events of one kind that may wait
	factGather  = 50 * time.Millisecond // changes within it are written to the tree as one
	mostRunning = 10_000                // processes, and sandboxes, that are shown
)

// eventFollower turns the host's events into changes of the tree. It belongs to one goroutine.
type eventFollower struct {
	tree  *liveTree
	kinds []iter.Seq[bus.Event]
	facts chan bus.Event
	due   <-chan time.Time // when changes are written; nil if there are none

	newSessions map[string]*sessionState // to be written; nil for those that have ended
	// processes and sandboxes report that an event about one arrived, so that they are to be listed again. An event
	// that was lost does no harm, because the next one has the same effect.
	processes, sandboxes bool
}

// newFollower follows events from now on.
func newFollower(ctx context.Context, t *liveTree) *eventFollower {
	f := &eventFollower{
		tree: t, facts: make(chan bus.Event), newSessions: map[string]*sessionState{},
	}
	for _, pattern := range []string{"session.*", "context.*", "config.changed", "module.process.>",
		"module.sandbox.>"} {
		f.kinds = append(f.kinds, t.app.bus.Follow(ctx, pattern, factQueue))
	}
	return f
}

// followEvents receives events until ctx is done.
func (e *eventFollower) followEvents(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	for _, kind := range e.kinds {
		reading.Go(func() {
			for fact := range kind {
				select {
				case e.facts <- fact:
				case <-ctx.Done():
				}
			}
		})
	}
	for {
		select {
		case fact := <-e.facts:
			e.handleEvent(fact)
		case <-e.due:
			e.due = nil
			e.writeChanges(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (e *eventFollower) handleEvent(fact bus.Event) {
	kind, what, _ := strings.Cut(fact.Subject, ".")
	switch {
	case kind == "session":
		e.session(what, fact)
	case kind == "module" && strings.HasPrefix(what, sandboxModule+"."):
		e.sandboxes = true
	case kind == "module":
		e.processes = true
	default:
		e.tree.lookAtContexts()
		e.tree.watches.Recheck() // the rules determine what each client may see
	}
	if e.due == nil && (len(e.newSessions) > 0 || e.processes || e.sandboxes) {
		e.due = time.After(factGather)
	}
}

func (e *eventFollower) writeChanges(ctx context.Context) {
	if err := state.Merge(ctx, e.tree.sessions, e.newSessions); err != nil && ctx.Err() == nil {
		e.tree.app.log.Warn("sessions are not shown", "err", err)
	}
	clear(e.newSessions)
	if e.processes {
		if err := e.tree.processes.Refresh(); err != nil && ctx.Err() == nil {
			e.tree.app.log.Warn("processes are not shown", "err", err)
		}
		if err := e.tree.builds.Refresh(); err != nil && ctx.Err() == nil {
			e.tree.app.log.Warn("builds are not shown", "err", err)
		}
	}
	if e.sandboxes {
		if err := e.tree.sandboxes.Refresh(); err != nil && ctx.Err() == nil {
			e.tree.app.log.Warn("sandboxes are not shown", "err", err)
		}
	}
	e.processes, e.sandboxes = false, false
}
