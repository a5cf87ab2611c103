package app

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"gatehouse/internal/app/core"
	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodebus"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver/h1"
	"gatehouse/tool"
)

// newID returns what makes ids of this node's jobs and outputs; nil without a cluster, which means the default.
func (c *clusterNodes) newID() func() string {
	if c == nil {
		return nil
	}
	return func() string { return strings.ToLower(rand.Text()) + "_" + c.ID() }
}

// otherMembers returns the ids of the members besides this node, in order.
func (c *clusterNodes) otherMembers() (ids []string) {
	for _, p := range c.Nodes()[1:] {
		if p.Member {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// Task implements httpserver.Nodes.
func (e sessionsElsewhere) Task(
	w http.ResponseWriter, r *http.Request, who *protocol.Caller, id string, body []byte,
) bool {
	_, node, ok := strings.Cut(id, "_")
	if e.arrived || !ok || node == e.ID() || !cluster.ValidID(node) {
		return false
	}
	known, alive := e.Known(node)
	if !known {
		return false
	}
	if alive {
		if sent, _ := e.forward(w, r, who, node, "", body); sent {
			return true
		}
	}
	if e.jobs.answers(r.Context(), id) {
		return false // this node says how it is
	}
	writeNodeError(w, http.StatusBadGateway, body,
		"the task is on node "+node+", which is not heard; if the node has died, the task is lost")
	return true
}

// joinBus makes handles name this node, and calls with a handle of another node run there.
func (a *App) joinBus(o *core.Options) {
	if a.nodes == nil {
		return
	}
	o.Modules.Node = a.nodes.ID()
	calls := &nodebus.Bus{
		Bus: a.bus, Self: a.nodes.ID(), Node: a.nodes.Known, Peers: a.nodes.otherMembers, Transport: a.nodes.calls,
		Streams: &nodebus.Streams{Dial: a.nodes.DialOwn},
		Resolve: a.nodes.browsers.nodeOf, Lost: a.nodes.jobs.lostCall,
		Place: a.placeCall, Staged: a.stagedHere,
	}
	o.Requests, o.Modules.Elsewhere = calls, calls.Elsewhere
	a.nodes.tasks = newClusterTasks(a.nodes, a.jobs)
	o.Engine.Tasks, o.Tasks = a.nodes.tasks, jobsAnywhere{a.nodes.tasks}
	if a.nodes.jobs != nil {
		o.Engine.Restart = func(job string, who tool.Caller, from *modulehost.Start) modulehost.Round {
			return a.host.Restart(job, who, from)
		}
	}
	a.nodes.watches = newNodeWatches(a.nodes)
	o.Engine.Elsewhere = a.nodes.watches.watch
	a.closing("watches on other nodes", a.nodes.watches.close)
}

// sharedEvents are the subjects of the events that other nodes get. Those of calls are not among them, because there
// are too many.
var sharedEvents = []string{
	"session.*", "context.*", "config.*", "auth.*", "approval.*", "task.*", "package.*", "notification.*", "module.>",
}

// longestCall bounds the answer to a call of another node. Calls have shorter limits of their own.
const longestCall = 24 * time.Hour

// serveCalls runs the calls that other nodes send because of their handles.
func (a *App) serveCalls() error {
	if a.nodes == nil {
		return nil
	}
	ln, err := a.nodes.Listen(nodebus.Service)
	if err != nil {
		return err
	}
	frames, err := a.nodes.Listen(nodebus.FrameService)
	if err != nil {
		return err
	}
	a.addPart("quick calls of other nodes", func(ctx context.Context) error {
		nodebus.ServeFrames(ctx, frames, a.bus, a.cfg.Limits.StopPatience/2, a.log)
		return nil
	})
	mux := http.NewServeMux()
	mux.Handle("POST /call", nodebus.Handler(a.bus))
	mux.HandleFunc("GET /members/{kind}", a.tree.serveMembers)
	mux.HandleFunc("POST "+watchPath, a.serveWatch)
	mux.HandleFunc("POST "+channelPath, a.serveChannel)
	carry, err := nodebus.CarryEvents(a.bus, a.nodes.Node, sharedEvents, a.log)
	if err != nil {
		return err
	}
	a.addPart("events of other nodes", carry)
	if err := a.serveTasks(); err != nil {
		return err
	}
	server := &h1.Server{Handler: mux, Log: a.log, Rest: &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: longestCall,
	}}
	a.addPart("calls of other nodes", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Limits.StopPatience/2)
			defer cancel()
			server.Shutdown(ctx)
			server.Close()
		})
		defer stop()
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}
