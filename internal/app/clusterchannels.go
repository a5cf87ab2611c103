package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodebus"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/tool"
)

// channelPath is the path of requests for the messages of a channel of WebSockets.
const channelPath = "/channel"

// channelRequest asks a node for the messages of a channel.
type channelRequest struct {
	Owner string `json:"owner"`
	Name  string `json:"name"`
}

// channelElsewhere returns what has the channels of processes on other nodes; nil without a cluster.
func (c *clusterNodes) channelElsewhere() hub.Elsewhere {
	if c == nil {
		return nil
	}
	return func(ctx context.Context, owner, name string) (iter.Seq[hub.Copy], error) {
		node := name[strings.LastIndexByte(name, '_')+1:] // ids end with that of their node
		if !cluster.ValidID(node) || node == c.ID() {
			return nil, nil
		}
		known, alive := c.Known(node)
		switch {
		case !known:
			return nil, nil
		case !alive:
			return nil, tool.Refuse(tool.CodeGone, "%s is on node %s, which is not heard; if the node has died, the "+
				"process is lost",
				name, node)
		}
		lines, err := nodebus.OpenWatch(ctx, c.calls, node, channelPath, channelRequest{owner, name})
		if _, refused := errors.AsType[*tool.Refusal](err); err != nil && !refused {
			err = tool.Refuse(tool.CodeUnavailable, "%s is on node %s, which does not send its messages: %v", name, node, err)
		}
		if err != nil {
			return nil, err
		}
		return func(yield func(hub.Copy) bool) {
			defer lines.Close()
			for d := json.NewDecoder(lines); ; {
				var m hub.Copy
				if d.Decode(&m) != nil || !yield(m) {
					return
				}
			}
		}, nil
	}
}

// serveChannel sends another node the messages of a channel of this one, until the channel or the request ends.
func (a *App) serveChannel(w http.ResponseWriter, q *http.Request) {
	var r channelRequest
	if err := json.NewDecoder(io.LimitReader(q.Body, 1<<20)).Decode(&r); err != nil {
		http.Error(w, "expected an owner and a name", http.StatusBadRequest)
		return
	}
	if a.sockets == nil {
		http.Error(w, "this node has no WebSockets", http.StatusNotFound)
		return
	}
	l, err := a.sockets.Hub().Listen(r.Owner, r.Name)
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		json.NewEncoder(w).Encode(err)
		return
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	defer context.AfterFunc(a.nodes.watches.life, cancel)()
	w.WriteHeader(http.StatusOK)
	control, lines := http.NewResponseController(w), json.NewEncoder(w)
	for control.Flush() == nil {
		select {
		case m, ok := <-l.Messages:
			if !ok || lines.Encode(m) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
