package app

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodebus"
	"gatehouse/tool"
)

// nodeWatches are the watches of resources that each node has its own of, such as files, on the other nodes: one stream
// to each node for each resource that is watched here.
type nodeWatches struct {
	c *clusterNodes

	life    context.Context // a field, because watches end with the host and not with a request
	end     context.CancelFunc
	running sync.WaitGroup

	mu  sync.Mutex
	all map[*nodeWatch]struct{}
}

// nodeWatch is one resource that is watched here.
type nodeWatch struct {
	ctx     context.Context // a field, because it ends with the last subscriber
	request watchRequest
	changed func(json.RawMessage)

	nodes map[string]bool // on which it is watched; guarded by nodeWatches.mu
}

// watchRequest asks a node to watch a resource.
type watchRequest struct {
	Caller tool.Caller `json:"caller"`
	URI    string      `json:"uri"`
}

const (
	watchPause = 200 * time.Millisecond // before a watch that ended is opened again
	watchRest  = 30 * time.Second       // before one is that was refused a few times
)

func newNodeWatches(c *clusterNodes) *nodeWatches {
	w := &nodeWatches{c: c, all: map[*nodeWatch]struct{}{}}
	w.life, w.end = context.WithCancel(context.Background())
	c.OnChange(func(p cluster.Peer) {
		if p.Alive {
			w.mu.Lock()
			defer w.mu.Unlock()
			for one := range w.all {
				w.follow(one, p.ID, true)
			}
		}
	})
	return w
}

func (w *nodeWatches) close(context.Context) error {
	w.mu.Lock()
	w.end() // from now on none is followed
	w.mu.Unlock()
	w.running.Wait()
	return nil
}

// watch implements protocol.Options.Elsewhere.
func (w *nodeWatches) watch(who tool.Caller, uri string, changed func(json.RawMessage)) (stop func()) {
	who.Session, who.Connection = "", ""
	ctx, cancel := context.WithCancel(w.life)
	one := &nodeWatch{ctx: ctx, request: watchRequest{who, uri}, changed: changed, nodes: map[string]bool{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[one] = struct{}{}
	for _, p := range w.c.Nodes()[1:] {
		if p.Alive {
			w.follow(one, p.ID, false)
		}
	}
	return func() {
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, one)
	}
}

// follow reports the changes on a node until that is not heard. With missed set there may have been some before. w.mu
// is held.
func (w *nodeWatches) follow(one *nodeWatch, node string, missed bool) {
	if one.nodes[node] || w.life.Err() != nil {
		return
	}
	one.nodes[node] = true
	w.running.Go(func() {
		pause := watchPause
		for again := true; again; {
			lines, err := nodebus.OpenWatch(one.ctx, w.c.calls, node, watchPath, one.request)
			pause = min(2*pause, watchRest)
			if err == nil {
				pause = watchPause
				if missed {
					one.changed(nil)
				}
				nodebus.ReadWatch(lines, one.changed)
				missed = true
				if one.ctx.Err() == nil {
					one.changed(nil) // what is read now may be from another node
				}
			}
			select {
			case <-time.After(pause):
			case <-one.ctx.Done():
			}
			w.mu.Lock()
			if again = one.ctx.Err() == nil && w.c.Alive(node); !again {
				delete(one.nodes, node)
			}
			w.mu.Unlock()
		}
	})
}

// watchPath is the path of requests to watch a resource.
const watchPath = "/watch"

// serveWatch watches a resource for another node until that ends the stream.
func (a *App) serveWatch(w http.ResponseWriter, q *http.Request) {
	var r watchRequest
	if err := json.NewDecoder(io.LimitReader(q.Body, 1<<20)).Decode(&r); err != nil {
		http.Error(w, "expected a caller and a URI", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	defer context.AfterFunc(a.nodes.watches.life, cancel)()
	nodebus.ServeWatch(ctx, w, func(changed func(json.RawMessage)) (func(), error) {
		return a.engine.WatchHere(ctx, r.Caller, r.URI, changed)
	})
}
