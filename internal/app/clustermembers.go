package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

const (
	// membersTime is how long another node has to say what is on it.
	membersTime = time.Second
	// mostMembers bounds what is read of it, in bytes.
	mostMembers = 64 << 20
)

// These are the live mounts whose members are shown on all nodes, by name below /public.
const (
	processMembers = "processes"
	buildMembers   = "builds"
	sandboxMembers = "sandboxes"
	sessionMembers = "sessions"
	jobMembers     = "jobs"
)

// nodeName returns the node on which the members of live mounts are; "" without a cluster.
func (a *App) nodeName() string {
	if a.nodes == nil {
		return ""
	}
	return a.nodes.ID()
}

// serveMembers answers what is on this node alone.
func (l *liveTree) serveMembers(w http.ResponseWriter, r *http.Request) {
	var all any
	switch r.PathValue("kind") {
	case processMembers:
		all = l.processesNow()
	case buildMembers:
		all = l.buildsNow()
	case sandboxMembers:
		all = l.sandboxesNow()
	case sessionMembers:
		all = l.sessionsNow()
	case jobMembers:
		all = l.jobsNow()
	default:
		http.NotFound(w, r)
		return
	}
	json.NewEncoder(w).Encode(all)
}

// onAllNodes returns a function that adds to the members of a live mount those of the other nodes that answer in time.
// The names of members differ on all nodes. Without a cluster it returns own.
func onAllNodes[E any](a *App, kind string, own func() map[string]E) func() map[string]E {
	if a.nodes == nil {
		return own
	}
	return func() map[string]E {
		all := own()
		ctx, cancel := context.WithTimeout(context.Background(), membersTime)
		defer cancel()
		var mu sync.Mutex
		var asking sync.WaitGroup
		for _, id := range a.nodes.otherMembers() {
			if !a.nodes.Alive(id) {
				continue
			}
			asking.Go(func() {
				var there map[string]E
				if err := a.nodes.membersAt(ctx, id, kind, &there); err != nil {
					a.log.Debug("what is on another node is not shown", "node", id, "kind", kind, "err", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(all, there)
			})
		}
		asking.Wait()
		return all
	}
}

// membersAt reads the members of a live mount of another node.
func (c *clusterNodes) membersAt(ctx context.Context, node, kind string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+node+".node/members/"+kind, nil)
	if err != nil {
		return err
	}
	answer, err := c.calls.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %s", answer.Status)
	}
	return json.NewDecoder(io.LimitReader(answer.Body, mostMembers)).Decode(into)
}
