package packages

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"gatehouse/internal/cluster/nodebus"
	"gatehouse/tool"
)

// A resource of a package whose server runs on another node is watched there. That node sends a line when the resource
// has changed; the stream ends when the package moves, and the resource is watched again where it is then.

// watchRequest asks a node to watch a resource.
type watchRequest struct {
	Caller  tool.Caller `json:"caller"`
	Package string      `json:"package"`
	URI     string      `json:"uri"`
}

// watchedAt returns the node on which resources of a package are watched; "" means this one.
func (h *Manager) watchedAt(id string) (string, error) {
	if h.opts.Cluster == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, shareTime)
	defer cancel()
	return h.Place(ctx, id, nil)
}

// watchElsewhere is Watch on another node.
func (h *Manager) watchElsewhere(
	node string, c tool.Caller, id, uri string, changed func(json.RawMessage),
) (stop func(), err error) {
	release, err := h.opts.Watches(c)
	if err != nil {
		return nil, &tool.Refusal{Code: tool.CodeBusy, Message: err.Error()}
	}
	ctx, cancel := context.WithCancel(h.ctx)
	lines, err := h.openWatch(ctx, node, watchRequest{c, id, uri})
	leave, closing := func() {}, error(nil)
	if err == nil {
		leave, closing = h.addWork()
	}
	if err = errors.Join(err, closing); err != nil {
		cancel()
		release()
		return nil, err
	}
	go func() {
		defer leave()
		nodebus.ReadWatch(lines, changed)
		h.watchAgain(ctx, c, id, uri, changed)
	}()
	return sync.OnceFunc(func() {
		cancel()
		release()
	}), nil
}

// watchAgain watches a resource after its package has moved, until ctx is done.
func (h *Manager) watchAgain(
	ctx context.Context, c tool.Caller, id, uri string, changed func(json.RawMessage),
) {
	for sleep(ctx, movePause) == nil {
		node, err := h.watchedAt(id)
		if err != nil {
			continue
		}
		if node != "" {
			if lines, err := h.openWatch(ctx, node, watchRequest{c, id, uri}); err == nil {
				changed(nil) // it may have changed meanwhile
				nodebus.ReadWatch(lines, changed)
			}
			continue
		}
		if stop, err := h.watchHere(id, uri, changed); err == nil {
			changed(nil)
			h.awaitMove(ctx, id)
			stop()
		}
	}
}

// watchHere watches a resource of a server that runs here; the watch is counted where its caller is.
func (h *Manager) watchHere(id, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	own := uri[min(len(uri), len(h.Address(id))):]
	one, end, err := p.watched.subscribeTo(own, &changed)
	if err != nil {
		return nil, err
	}
	if err := p.watched.waitForSubscription(one); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// awaitMove returns when a package has its place on another node, or ctx is done.
func (h *Manager) awaitMove(ctx context.Context, id string) {
	for sleep(ctx, time.Second) == nil {
		p, err := h.findPackage(id)
		if err != nil {
			return
		}
		p.mu.Lock()
		here := p.runsHere()
		p.mu.Unlock()
		if !here {
			return
		}
	}
}

// openWatch asks a node to watch a resource, and returns its stream once it does.
func (h *Manager) openWatch(ctx context.Context, node string, w watchRequest) (io.ReadCloser, error) {
	w.Caller.Session, w.Caller.Connection = "", ""
	lines, err := nodebus.OpenWatch(ctx, h.opts.Cluster.Transport, node, "/watch", w)
	if _, refused := errors.AsType[*tool.Refusal](err); err != nil && !refused {
		return nil, tool.Refuse(tool.CodeUnavailable, "node %s, on which package %s runs: %v", node, w.Package, err)
	}
	return lines, err
}

// serveWatch watches a resource for another node until that ends the stream, or the package moves.
func (h *Manager) serveWatch(w http.ResponseWriter, q *http.Request) {
	var r watchRequest
	if err := json.NewDecoder(io.LimitReader(q.Body, 1<<20)).Decode(&r); err != nil {
		http.Error(w, "expected a package and a URI", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	nodebus.ServeWatch(ctx, w, func(changed func(json.RawMessage)) (stop func(), err error) {
		if stop, err = h.watchHere(r.Package, r.URI, changed); err == nil {
			go func() {
				defer cancel()
				h.awaitMove(ctx, r.Package)
			}()
		}
		return stop, err
	})
}
