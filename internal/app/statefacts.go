package app

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/state"
)

const (
	factQueue   = 4096                  // events of one kind that may wait
	factGather  = 50 * time.Millisecond // changes within it are written to the tree as one
	mostRunning = 10_000                // processes that are shown, and ends without a start that are kept
)

// eventFollower turns the host's events into changes of the tree. It belongs to one goroutine.
type eventFollower struct {
	tree  *liveTree
	kinds []iter.Seq[bus.Event]
	facts chan bus.Event
	due   <-chan time.Time // when changes are written; nil if there are none

	processes map[string]processState
	ended     map[string]struct{} // processes whose end was published before their start

	newSessions  map[string]*sessionState // to be written; nil for those that have ended
	newProcesses map[string]*processState

	sandboxes sandboxEvents
}

// newFollower follows events from now on.
func newFollower(ctx context.Context, t *liveTree) *eventFollower {
	f := &eventFollower{
		tree: t, facts: make(chan bus.Event), ended: map[string]struct{}{},
		processes:   map[string]processState{},
		newSessions: map[string]*sessionState{}, newProcesses: map[string]*processState{},
		sandboxes: newShowSandboxes(),
	}
	for _, pattern := range []string{"session.*", "context.*", "config.changed", "module.process.>", "module.sandbox.>"} {
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
			e.writeLoop(ctx)
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
		e.sandboxes.handleEvent(fact)
	case kind == "module":
		if fact.Lost > 0 {
			e.lookAtProcesses()
		}
		e.process(fact)
	default:
		e.tree.lookAtContexts()
		e.tree.watches.Recheck() // the rules determine what each client may see
	}
	if e.due == nil && len(e.newSessions)+len(e.newProcesses)+len(e.sandboxes.fresh) > 0 {
		e.due = time.After(factGather)
	}
}

func (e *eventFollower) writeLoop(ctx context.Context) {
	if err := state.Merge(ctx, e.tree.sessions, e.newSessions); err != nil && ctx.Err() == nil {
		e.tree.app.log.Warn("sessions are not shown", "err", err)
	}
	if err := state.Merge(ctx, e.tree.processes, e.newProcesses); err != nil && ctx.Err() == nil {
		e.tree.app.log.Warn("processes are not shown", "err", err)
	}
	e.sandboxes.writeState(ctx, e.tree)
	clear(e.newSessions)
	clear(e.newProcesses)
}

func (e *eventFollower) process(fact bus.Event) {
	d, ok := bus.Decode[process.Event](fact)
	if !ok || d.ID == "" {
		return
	}
	_, early := e.ended[d.ID]
	switch {
	case strings.HasSuffix(fact.Subject, ".started") && early:
		delete(e.ended, d.ID)
	case strings.HasSuffix(fact.Subject, ".started"):
		if len(e.processes) < mostRunning {
			e.setProcess(d.ID, &processState{d.Owner, d.Command, d.PID, fact.At.UTC(), procid.Watch(d.PID)})
		}
	case strings.HasSuffix(fact.Subject, ".handed_over"):
		if p, there := e.processes[d.ID]; there {
			p.Owner = d.Owner
			e.setProcess(d.ID, &p)
		}
	case strings.HasSuffix(fact.Subject, ".exited"):
		if _, there := e.processes[d.ID]; there {
			e.setProcess(d.ID, nil)
		} else if len(e.ended) < mostRunning {
			e.ended[d.ID] = struct{}{}
		}
	}
}

func (e *eventFollower) setProcess(id string, p *processState) {
	if p == nil {
		delete(e.processes, id)
	} else {
		e.processes[id] = *p
	}
	e.newProcesses[id] = p
}

// lookAtProcesses removes processes that have ended, after events were lost.
func (e *eventFollower) lookAtProcesses() {
	for id, p := range e.processes {
		if p.ended() {
			e.setProcess(id, nil)
		}
	}
	clear(e.ended)
}
