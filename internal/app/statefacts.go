package app

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/state"
)

const (
	factQueue  = 4096                  // events of one kind that may wait
	factGather = 50 * time.Millisecond // changes within it are written to the tree as one
	// nodeGather is factGather for changes on other nodes, each of which is asked for what it has.
	nodeGather  = 250 * time.Millisecond
	mostRunning = 10_000 // processes, and sandboxes, that are shown
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
	// sessions is the same for sessions, whose events say themselves what has changed except on another node.
	sessions bool
	// jobs is the same for jobs, of which nodes tell each other without an event; ownJobs if they are this node's.
	jobs, ownJobs bool
	jobsElsewhere chan struct{} // holds a token when jobs of another node have changed
	nodes         chan struct{} // holds a token when a node has appeared or died
}

// jobsTopic is the topic on which a node tells the others that the jobs which it shows have changed.
const jobsTopic = "shown-jobs"

// newFollower follows events from now on.
func newFollower(ctx context.Context, t *liveTree) *eventFollower {
	f := &eventFollower{
		tree: t, facts: make(chan bus.Event), newSessions: map[string]*sessionState{}, nodes: make(chan struct{}, 1),
		jobsElsewhere: make(chan struct{}, 1),
	}
	for _, pattern := range []string{"context.*", "config.changed"} {
		f.kinds = append(f.kinds, t.app.bus.Follow(ctx, pattern, factQueue))
	}
	for _, pattern := range []string{"session.*", "module.process.>", "module.sandbox.>"} {
		f.kinds = append(f.kinds, t.app.bus.FollowAll(ctx, pattern, factQueue))
	}
	if t.app.nodes != nil {
		t.app.nodes.OnChange(func(cluster.Peer) {
			select {
			case f.nodes <- struct{}{}:
			default:
			}
		})
		stop, _, err := t.app.nodes.Follow(jobsTopic, func(from, _ string, _ []byte) {
			if from == t.app.nodes.ID() {
				return
			}
			select {
			case f.jobsElsewhere <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.app.log.Warn("jobs of other nodes are shown late", "err", err)
		} else {
			context.AfterFunc(ctx, stop)
		}
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
		case <-e.nodes:
			e.processes, e.sandboxes, e.sessions, e.jobs = true, true, true, true
			e.gather(nodeGather)
		case <-e.jobsElsewhere:
			e.jobs = true
			e.gather(nodeGather)
		case <-e.tree.ownJobs.changed:
			e.jobs, e.ownJobs = true, true
			e.gather(nodeGather)
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
	if fact.Node != "" {
		e.gather(nodeGather)
	} else {
		e.gather(factGather)
	}
}

// gather writes the changes after a pause in which more can arrive.
func (e *eventFollower) gather(pause time.Duration) {
	if e.due == nil && (len(e.newSessions) > 0 || e.processes || e.sandboxes || e.sessions || e.jobs) {
		e.due = time.After(pause)
	}
}

func (e *eventFollower) writeChanges(ctx context.Context) {
	if e.sessions {
		e.lookAgain()
	}
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
	if e.ownJobs {
		if err := e.tree.app.nodes.Publish(jobsTopic, nil); err != nil && ctx.Err() == nil {
			e.tree.app.log.Warn("jobs of this node are shown late on others", "err", err)
		}
	}
	if e.jobs {
		if err := e.tree.jobs.Refresh(); err != nil && ctx.Err() == nil {
			e.tree.app.log.Warn("jobs are not shown", "err", err)
		}
	}
	e.processes, e.sandboxes, e.sessions, e.jobs, e.ownJobs = false, false, false, false, false
}
