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
	factQueue   = 4096                  // facts of one kind that may wait
	factGather  = 50 * time.Millisecond // changes within it are written to the tree as one
	mostRunning = 10_000                // processes that are shown, and ends without a beginning that are remembered
)

// follower turns the facts of the house into what the tree says of it. It
// belongs to one goroutine.
type follower struct {
	tree  *tree
	kinds []iter.Seq[bus.Event]
	facts chan bus.Event
	due   <-chan time.Time // when what has changed is written; nil while nothing has

	processes map[string]processState
	ended     map[string]struct{} // processes whose end was told before their beginning

	newSessions  map[string]*sessionState // to be written; nil for those that are gone
	newProcesses map[string]*processState

	sandboxes showSandboxes
}

// newFollower follows from now on.
func newFollower(ctx context.Context, t *tree) *follower {
	f := &follower{
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

// run takes facts in until ctx is done.
func (f *follower) run(ctx context.Context) {
	var reading sync.WaitGroup
	defer reading.Wait()
	for _, kind := range f.kinds {
		reading.Go(func() {
			for fact := range kind {
				select {
				case f.facts <- fact:
				case <-ctx.Done():
				}
			}
		})
	}
	for {
		select {
		case fact := <-f.facts:
			f.take(fact)
		case <-f.due:
			f.due = nil
			f.write(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (f *follower) take(fact bus.Event) {
	kind, what, _ := strings.Cut(fact.Subject, ".")
	switch {
	case kind == "session":
		f.session(what, fact)
	case kind == "module" && strings.HasPrefix(what, sandboxModule+"."):
		f.sandboxes.take(fact)
	case kind == "module":
		if fact.Lost > 0 {
			f.lookAtProcesses()
		}
		f.process(fact)
	default:
		f.tree.lookAtContexts()
		f.tree.watches.Recheck() // what each may see follows from the rules
	}
	if f.due == nil && len(f.newSessions)+len(f.newProcesses)+len(f.sandboxes.fresh) > 0 {
		f.due = time.After(factGather)
	}
}

func (f *follower) write(ctx context.Context) {
	if err := state.Merge(ctx, f.tree.sessions, f.newSessions); err != nil && ctx.Err() == nil {
		f.tree.app.log.Warn("sessions are not shown", "err", err)
	}
	if err := state.Merge(ctx, f.tree.processes, f.newProcesses); err != nil && ctx.Err() == nil {
		f.tree.app.log.Warn("processes are not shown", "err", err)
	}
	f.sandboxes.write(ctx, f.tree)
	clear(f.newSessions)
	clear(f.newProcesses)
}

func (f *follower) process(fact bus.Event) {
	d, ok := bus.Decode[process.Event](fact)
	if !ok || d.ID == "" {
		return
	}
	_, early := f.ended[d.ID]
	switch {
	case strings.HasSuffix(fact.Subject, ".started") && early:
		delete(f.ended, d.ID)
	case strings.HasSuffix(fact.Subject, ".started"):
		if len(f.processes) < mostRunning {
			f.setProcess(d.ID, &processState{d.Owner, d.Command, d.PID, fact.At.UTC(), procid.Watch(d.PID)})
		}
	case strings.HasSuffix(fact.Subject, ".handed_over"):
		if p, there := f.processes[d.ID]; there {
			p.Owner = d.Owner
			f.setProcess(d.ID, &p)
		}
	case strings.HasSuffix(fact.Subject, ".exited"):
		if _, there := f.processes[d.ID]; there {
			f.setProcess(d.ID, nil)
		} else if len(f.ended) < mostRunning {
			f.ended[d.ID] = struct{}{}
		}
	}
}

func (f *follower) setProcess(id string, p *processState) {
	if p == nil {
		delete(f.processes, id)
	} else {
		f.processes[id] = *p
	}
	f.newProcesses[id] = p
}

// lookAtProcesses takes away those that are gone, after the facts of some were
// lost.
func (f *follower) lookAtProcesses() {
	for id, p := range f.processes {
		if p.ended() {
			f.setProcess(id, nil)
		}
	}
	clear(f.ended)
}
