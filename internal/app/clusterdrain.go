package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/session"
)

// drainTopic is the topic of the request to drain a node; see DrainState.
const drainTopic = "drain"

// DrainState is what a node that drains still has.
type DrainState struct {
	Draining bool `json:"draining"`
	Sessions int  `json:"sessions"` // whose calls run, or that no other node can take
	Jobs     int  `json:"jobs"`     // that run or wait
	Packages int  `json:"packages"` // with calls that have not ended
}

// Empty reports whether the node can be stopped without a client that notices.
func (d DrainState) Empty() bool {
	return d.Draining && d.Sessions == 0 && d.Jobs == 0 && d.Packages == 0
}

// Drain makes the node of this machine take no new sessions and give those that it has to other nodes, or with on false
// take some again. It calls report with what the node still has, until that is nothing or ctx is done.
func Drain(ctx context.Context, f config.Folders, on bool, report func(DrainState)) error {
	dir := ClusterFolder(f.Data)
	id, err := cluster.IDOf(dir)
	if err != nil {
		return err
	}
	n, err := cluster.Visitor(dir)
	if err != nil {
		return err
	}
	defer n.Close()
	question, err := json.Marshal(on)
	if err != nil {
		return err
	}
	for {
		once, cancel := context.WithTimeout(ctx, commandTime)
		raw, err := n.Request(once, id, drainTopic, question)
		cancel()
		var state DrainState
		if err == nil {
			err = json.Unmarshal(raw, &state)
		}
		if err != nil {
			return err
		}
		report(state)
		if !on || state.Empty() {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// shareLoad tells the other nodes how busy this one is, once its parts are there.
func (a *App) shareLoad(context.Context) error {
	if c := a.nodes; c != nil {
		c.SetLoad(func() float64 {
			load := c.app.jobs.Live()
			if m := c.app.manager; m != nil {
				load += m.Running()
			}
			if m := c.app.boxes.Load(); m != nil {
				load += len(m.All())
			}
			return float64(load)
		})
	}
	return nil
}

// serveDrain answers requests to drain this node. A restart ends draining.
func (c *clusterNodes) serveDrain() error {
	_, err := c.Handle(drainTopic, func(ctx context.Context, _ string, raw []byte) ([]byte, error) {
		var on bool
		if err := json.Unmarshal(raw, &on); err != nil {
			return nil, err
		}
		if c.Draining() != on {
			c.log.Info("this node takes new sessions", "new", !on)
		}
		state := DrainState{Draining: on, Sessions: c.app.table.Len() + c.handover.len(), Jobs: c.app.jobs.Live()}
		c.SetDraining(on)
		if m := c.app.manager; on && m != nil {
			state.Packages = m.LeavePlaces(ctx)
		}
		return json.Marshal(state)
	})
	return err
}

// handover tells the sessions in which requests run from those that this node gives to another one.
type handover struct {
	mu       sync.Mutex
	requests map[string]int // being served, by session
	leaving  map[string]bool
}

// enter counts a request of a session until done is called. It returns nil if the session is leaving.
func (h *handover) enter(id string) (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leaving[id] {
		return nil
	}
	if h.requests == nil {
		h.requests = map[string]int{}
	}
	h.requests[id]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.requests[id]--; h.requests[id] == 0 {
			delete(h.requests, id)
		}
	})
}

// leave makes a session one that leaves, if no request of it is served.
func (h *handover) leave(s *session.Session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.requests[s.ID] > 0 || h.leaving[s.ID] || s.Calls() > 0 {
		return false
	}
	if h.leaving == nil {
		h.leaving = map[string]bool{}
	}
	h.leaving[s.ID] = true
	return true
}

func (h *handover) left(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leaving, id)
}

// await returns once a session is not leaving.
func (h *handover) await(ctx context.Context, id string) error {
	for {
		h.mu.Lock()
		leaving := h.leaving[id]
		h.mu.Unlock()
		if !leaving {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the session is being moved to another node: %w", context.Cause(ctx))
		}
	}
}

func (h *handover) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.leaving)
}

// drainPause is the time between two looks for sessions that can move.
const drainPause = 100 * time.Millisecond

// handOvers bounds the records of sessions that are written at once.
const handOvers = 16

// moveSessions gives the sessions without running calls to other nodes, while this one drains and there is one that
// does not.
func (c *clusterNodes) moveSessions(ctx context.Context) {
	if !c.Draining() || c.target("") == "" {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, handOvers)
	c.app.table.All(func(s *session.Session) {
		if ctx.Err() != nil || !c.handover.leave(s) {
			return
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			defer c.handover.left(s.ID)
			c.handOver(ctx, s)
		})
	})
}

// handOver ends a session here and makes its record one that any node may adopt.
func (c *clusterNodes) handOver(ctx context.Context, s *session.Session) {
	raw, err := json.Marshal(recordOf(s, ""))
	if err != nil {
		c.log.Error("a session was not given to another node", "err", err)
		return
	}
	c.app.table.End(s, session.ErrMoved)
	for ctx.Err() == nil {
		if err = c.free(ctx, s.ID, raw); err == nil || errors.Is(err, cluster.ErrNotFound) {
			return
		}
		c.log.Debug("the record of a session is not written yet", "err", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// free writes the record of a session that no node has, unless another node has adopted it.
func (c *clusterNodes) free(ctx context.Context, id string, raw []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := c.sessions.Get(ctx, id)
	if err != nil {
		return err
	}
	var was sessionRecord
	if err := json.Unmarshal(r.Value, &was); err != nil || was.Node != c.ID() {
		return err
	}
	_, err = c.sessions.Update(ctx, id, raw, r.Revision)
	return err
}

// target returns the node with the lowest load that takes the session id, or a new one; "" if only this one can.
func (c *clusterNodes) target(id string) string {
	best, least := "", 0.0
	for _, p := range c.Nodes()[1:] {
		if !p.Alive || !p.Member || p.Draining {
			continue
		}
		// Sessions that move at once are spread over nodes whose load has not changed yet.
		if load := p.Load + cluster.Spread(p.ID+id); best == "" || load < least {
			best, least = p.ID, load
		}
	}
	return best
}
