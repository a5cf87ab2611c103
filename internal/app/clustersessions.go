package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"gatehouse/internal/app/core"
	"gatehouse/internal/cluster"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/server/httpserver"
)

// sessionRecord is what another node has to know to adopt a session.
type sessionRecord struct {
	Node  string        `json:"node"` // "" while it is on none, so that any may adopt it
	Facts session.Facts `json:"facts"`
	Level slog.Level    `json:"level,omitempty"`
	URIs  []string      `json:"uris,omitempty"` // of subscriptions

	Format int `json:"format,omitempty"` // see cluster.Format
}

// sessionsElsewhere implements httpserver.Nodes.
type sessionsElsewhere struct {
	*clusterNodes
	arrived bool // from another node, which must not send it on
}

// sessionNodes returns what the HTTP server needs of the cluster; nil without one.
func (a *App) sessionNodes(arrived bool) httpserver.Nodes {
	if a.nodes == nil {
		return nil
	}
	return sessionsElsewhere{a.nodes, arrived}
}

// Headers between nodes.
const (
	headerCaller = "Gatehouse-Caller" // who the first node found the caller to be
	headerNode   = "Gatehouse-Node"   // where the session is, in an answer with status 421
)

// identifyForwarded returns the caller that another node has identified. Only nodes reach the listener.
func identifyForwarded(r *http.Request) (protocol.Caller, *httpserver.Denied) {
	var f struct {
		Caller       json.RawMessage
		Bound, Until json.RawMessage
	}
	var who protocol.Caller
	err := json.Unmarshal([]byte(r.Header.Get(headerCaller)), &f)
	if err == nil {
		err = errors.Join(json.Unmarshal(f.Caller, &who.Caller), json.Unmarshal(f.Bound, &who.Bound),
			json.Unmarshal(f.Until, &who.Until))
	}
	if err != nil {
		return who, &httpserver.Denied{Status: 400, Message: "the request of another node names no caller"}
	}
	return who, nil
}

// withNodes serves, with the HTTP listener, the requests that other nodes send on, and tells them its address.
func (a *App) withNodes(open Listener) (Listener, error) {
	if a.nodes == nil {
		return open, nil
	}
	a.nodes.SetAddress(open.Address)
	o, err := a.httpOptions()
	if err != nil {
		return open, err
	}
	o.Identify, o.Nodes, o.Hosts, o.Origins = identifyForwarded, a.sessionNodes(true), []string{"node"}, nil
	server, err := httpserver.New(a.engine, o)
	if err != nil {
		return open, err
	}
	ln, err := a.nodes.Listen("http")
	if err != nil {
		return open, err
	}
	own, closeOwn := open.part, open.close
	nodes := Part{Name: "nodes", Run: func(ctx context.Context) error { return server.Serve(ctx, ln) }}
	open.close = func() { closeOwn(); ln.Close() }
	open.part = core.Together(own.Name, own, nodes)
	return open, nil
}

// recordOf returns what another node has to know of a session that is on a node.
func recordOf(s *session.Session, node string) sessionRecord {
	active, suspended := s.Subscriptions()
	record := sessionRecord{
		Node: node, Facts: s.Facts(), Level: s.Level(), URIs: append(active, suspended...), Format: cluster.Format,
	}
	record.Facts.Session, record.Facts.Wire, record.Facts.Trace, record.Facts.Cut = "", "", "", ""
	return record
}

// Changed implements httpserver.Nodes.
func (e sessionsElsewhere) Changed(ctx context.Context, s *session.Session) {
	raw, err := json.Marshal(recordOf(s, e.ID()))
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err = e.sessions.Put(ctx, s.ID, raw)
	}
	if err != nil {
		e.log.Warn("the session ends with this node: its record was not written", "client", s.Known().Client, "err", err)
	}
}

// sessionEnded removes the record of a session, except of one that another node can go on with.
func (c *clusterNodes) sessionEnded(s *session.Session, cause error) {
	if errors.Is(cause, session.ErrStop) || errors.Is(cause, session.ErrMoved) {
		return
	}
	select {
	case c.ended <- s.ID:
	default: // the record ends by its age
	}
}

func (c *clusterNodes) forgetSession(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	r, err := c.sessions.Get(ctx, id)
	if err == nil {
		err = c.sessions.Purge(ctx, id, r.Revision)
	}
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		c.log.Debug("the record of a session was not removed", "err", err)
	}
}

// Serve implements httpserver.Nodes.
func (e sessionsElsewhere) Serve(
	w http.ResponseWriter, r *http.Request, who *protocol.Caller, id string, body []byte,
) (served bool, done func()) {
	for {
		if e.app.table.Has(id) {
			if err := e.serves(); err != nil {
				busy(w, body, err)
				return true, nil
			}
			if done := e.handover.enter(id); done != nil {
				if e.app.table.Has(id) { // from now on it does not leave
					return false, done
				}
				done()
			}
		}
		node, _, ok := strings.Cut(id, "-")
		if !ok || !cluster.ValidID(node) {
			return false, func() {}
		}
		if served, here := e.serveElsewhere(w, r, who, node, id, body); served || !here {
			return served, func() {}
		}
	}
}

// Begin implements httpserver.Nodes: a node that drains opens no sessions.
func (e sessionsElsewhere) Begin(w http.ResponseWriter, r *http.Request, who *protocol.Caller, body []byte) bool {
	if e.arrived || !e.Draining() {
		return false
	}
	to := e.target(rand.Text())
	if to == "" {
		return false
	}
	served, _ := e.forward(w, r, who, to, "", body)
	return served
}

// serveElsewhere serves a request of a session that is not here, unless this node adopts it: then here is true. If both
// are false there is no such session.
func (e sessionsElsewhere) serveElsewhere(
	w http.ResponseWriter, r *http.Request, who *protocol.Caller, node, id string, body []byte,
) (served, here bool) {
	if to, ok := e.moved.Load(id); ok {
		node = to.(string)
	}
	// The record of the session says whether a node that drains still has it; that node may stop as soon as it has none.
	ask := !e.arrived && !e.DrainingAt(node)
	begun := time.Now()
	for hops := 0; hops < maxHops && time.Since(begun) < 2*e.lease; {
		if ask && node != e.ID() && e.Alive(node) {
			sent, next := e.forward(w, r, who, node, id, body)
			if sent {
				return true, false
			}
			if next != "" && next != e.ID() {
				e.moved.Store(id, next)
				node = next
				hops++
				continue
			}
		}
		here, at, err := e.adopt(r.Context(), who, id)
		switch {
		case err != nil:
			busy(w, body, err)
			return true, false
		case here:
			return false, true
		case at == "": // there is no such session
			return false, false
		case e.arrived:
			w.Header().Set(headerNode, at)
			w.WriteHeader(http.StatusMisdirectedRequest)
			return true, false
		}
		if ask && at == node { // it has just started, and does not hear this node yet
			select {
			case <-time.After(e.lease / 20):
			case <-r.Context().Done():
				return true, false
			}
		} else {
			hops++
		}
		e.moved.Store(id, at)
		node, ask = at, true
	}
	busy(w, body, fmt.Errorf("the session is on node %s, which does not answer", node))
	return true, false
}

// maxHops bounds how often a request follows a session that moves.
const maxHops = 5

// adopt takes over a session whose node is dead. here means that this node has it now; otherwise at is its node.
func (e sessionsElsewhere) adopt(
	ctx context.Context,
	who *protocol.Caller,
	id string,
) (here bool, at string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // longer than an election
	defer cancel()
	begun := time.Now()
	for {
		if err := e.handover.await(ctx, id); err != nil {
			return false, "", err
		}
		r, err := e.sessions.Get(ctx, id)
		if errors.Is(err, cluster.ErrNotFound) {
			return false, "", nil
		}
		var record sessionRecord
		if err == nil {
			err = json.Unmarshal(r.Value, &record)
		}
		if err == nil {
			err = cluster.CheckFormat("the record of the session", record.Format)
		}
		if err != nil {
			return false, "", err
		}
		if record.Facts.Principal != who.Principal {
			return false, "", nil
		}
		if record.Node == "" && e.Draining() {
			if to := e.target(id); to != "" {
				return false, to, nil
			}
		}
		if record.Node != e.ID() && record.Node != "" {
			dead, err := e.Dead(ctx, record.Node)
			if err != nil && time.Since(begun) < 2*e.lease {
				// This node has just started and hears that node in a moment, or it is the first that does not.
				select {
				case <-time.After(e.lease / 20):
				case <-ctx.Done():
				}
				continue
			}
			if err != nil {
				return false, "", err
			}
			if !dead {
				return false, record.Node, nil
			}
		}
		if err := e.Fresh(); err != nil {
			return false, "", err
		}
		record.Node = e.ID()
		raw, err := json.Marshal(record)
		if err != nil {
			return false, "", err
		}
		once, stop := context.WithTimeout(ctx, 2*e.lease)
		_, err = e.sessions.Update(once, id, raw, r.Revision)
		stop()
		if errors.Is(err, cluster.ErrConflict) || errors.Is(err, cluster.ErrMayHaveRun) && ctx.Err() == nil {
			continue // the record says who has it now
		}
		if err != nil {
			return false, "", err
		}
		s, fresh, err := e.app.table.Adopt(id, record.Facts)
		if err != nil {
			return false, "", err
		}
		if fresh {
			s.SetLevel(record.Level)
			e.app.engine.Adopted(s, record.URIs)
			s.TakeChanged()
		}
		e.moved.Delete(id)
		return true, "", nil
	}
}

// busy answers that a request was not run, and that it can be sent again.
func busy(w http.ResponseWriter, body []byte, err error) {
	w.Header().Set("Retry-After", "1")
	writeNodeError(w, http.StatusServiceUnavailable, body, "not run: "+err.Error())
}

func writeNodeError(w http.ResponseWriter, status int, body []byte, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(nodeError(body, text))
}

// nodeError returns the JSON-RPC error that answers the request in body.
func nodeError(body []byte, text string) []byte {
	f := &protocol.Fault{Code: protocol.CodeInternal, Message: text}
	if id, ok := rawjson.Get(body, "id"); ok {
		f.ID = id
	}
	return protocol.Respond(f)
}

// forward sends a request to the node of its session, and the answer back. sent is false if the node did not get
// it; then next is the node to which that one refers.
func (e sessionsElsewhere) forward(
	w http.ResponseWriter, r *http.Request, who *protocol.Caller, node, id string, body []byte,
) (sent bool, next string) {
	caller, err := json.Marshal(map[string]any{"Caller": who.Caller, "Bound": who.Bound, "Until": who.Until})
	if err != nil {
		return false, ""
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+node+".node"+r.URL.RequestURI(),
		bytes.NewReader(body))
	if err != nil {
		return false, ""
	}
	out.Host = "node"
	for _, name := range []string{
		"Accept", "Content-Type", "Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-Id", "X-Mcp-Context",
		"Traceparent", "Mcp-Method", "Mcp-Name",
	} {
		if v := r.Header[name]; len(v) > 0 {
			out.Header[name] = v
		}
	}
	out.Header.Set(headerCaller, string(caller))
	for _, name := range e.app.forwards() {
		if v := r.Header[name]; len(v) > 0 {
			out.Header[name] = v
		}
	}
	answer, err := e.transport.RoundTrip(out)
	if err != nil {
		if errors.Is(err, cluster.ErrNotRun) {
			return false, ""
		}
		writeNodeError(w, http.StatusBadGateway, body,
			"the node of the session is gone; the request may have run: "+err.Error())
		return true, ""
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusMisdirectedRequest {
		return false, answer.Header.Get(headerNode)
	}
	for _, name := range []string{
		"Content-Type", "Mcp-Session-Id", "Cache-Control", "Retry-After", "Vary", "Allow", "X-Accel-Buffering",
	} {
		if v := answer.Header[name]; len(v) > 0 {
			w.Header()[name] = v
		}
	}
	w.WriteHeader(answer.StatusCode)
	if err := copyFlushed(w, answer.Body); err != nil && r.Method == http.MethodPost &&
		strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") && r.Context().Err() == nil {
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", nodeError(body,
			"the node of the session is gone; the request may have run"))
	}
	return true, ""
}

// copyFlushed sends on each part of an answer at once.
func copyFlushed(w http.ResponseWriter, from io.Reader) error {
	control := http.NewResponseController(w)
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			control.SetWriteDeadline(time.Now().Add(time.Minute))
			if _, err := w.Write(buffer[:n]); err != nil {
				return nil // the client is gone
			}
			control.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
