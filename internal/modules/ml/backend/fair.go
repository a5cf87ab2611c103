package backend

import (
	"context"
	"errors"
	"sync"
)

// ErrQueue means that too many requests wait for a server already.
var ErrQueue = errors.New("too many requests wait for this backend")

// Limits of what waits for one server.
const (
	maxWaiting      = 10_000
	maxWaitingOwner = 2_000
)

// gate lets a number of requests through at once. Those that wait are let in by turns of their owners, so that one
// who sends many does not keep the others waiting.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting int
	queues  map[string][]chan struct{}
	turns   []string // owners who wait, the next first
}

// waitForPlace waits for a place. The caller calls leave afterwards.
func (g *gate) waitForPlace(ctx context.Context, owner string) error {
	g.mu.Lock()
	if g.free > 0 && g.waiting == 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	if g.waiting >= maxWaiting || len(g.queues[owner]) >= maxWaitingOwner {
		g.mu.Unlock()
		return ErrQueue
	}
	if g.queues == nil {
		g.queues = map[string][]chan struct{}{}
	}
	if len(g.queues[owner]) == 0 {
		g.turns = append(g.turns, owner)
	}
	turn := make(chan struct{}, 1)
	g.queues[owner] = append(g.queues[owner], turn)
	g.waiting++
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	if !g.remove(owner, turn) {
		g.leave() // the place came at the same moment
	}
	return context.Cause(ctx)
}

// remove takes a request out of the queue; false means that it was let in before.
func (g *gate) remove(owner string, turn chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, t := range g.queues[owner] {
		if t == turn {
			g.queues[owner] = append(g.queues[owner][:i:i], g.queues[owner][i+1:]...)
			g.waiting--
			return true
		}
	}
	return false
}

// leave gives a place back, to the next owner who waits.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.turns) > 0 {
		owner := g.turns[0]
		g.turns = g.turns[1:]
		queue := g.queues[owner]
		if len(queue) == 0 {
			delete(g.queues, owner)
			continue
		}
		queue[0] <- struct{}{}
		g.waiting--
		if len(queue) == 1 {
			delete(g.queues, owner)
		} else {
			g.queues[owner] = queue[1:]
			g.turns = append(g.turns, owner)
		}
		return
	}
	g.free++
}

// waitingRequests returns the number of requests that wait.
func (g *gate) waitingRequests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}
