package httpserver

import (
	"context"
	nethttp "net/http"
	"strings"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
)

// post accepts one message, or a batch of them, from a caller who has been identified.
func (d *Server) post(x *exchange, r *nethttp.Request) {
	w, who := x.w, &x.who
	who.Wire = r.RemoteAddr
	if r.ProtoMajor > 1 {
		unlimited(w) // a server's limits would reset the stream in the middle of a call
	}
	if f := wantJSON(r.Header); f != nil {
		answerFault(w, f)
		return
	}
	body, held, f := d.readBody(w, r, who)
	if f != nil {
		answerFault(w, f)
		if f.Status == 413 || f.Status == 429 {
			linger(w, r)
		}
		return
	}
	msgs, faults, batch := protocol.Parse(body)
	x.held = held
	defer x.releaseUnlessOpen()
	if d.opts.Nodes != nil &&
		(batch || len(faults) > 0 || d.engine.EraOf(&msgs[0], headerOf(r.Header)) == protocol.Legacy) {
		served, done := d.elsewhere(w, r, who, body)
		if served {
			return
		}
		defer done()
	}
	if batch {
		d.postBatch(x, r, msgs, faults)
		return
	}
	if len(faults) > 0 {
		answerFault(w, faults[0])
		return
	}
	m := &msgs[0]
	m.Forward = d.forwarded(r.Header)
	header := headerOf(r.Header)
	a := readAccept(r.Header["Accept"])
	if d.engine.EraOf(m, header) == protocol.Modern {
		if d.taskElsewhere(w, r, who, m, body) {
			return
		}
		d.postModern(x, r, m, header, a)
		return
	}
	if m.Method == "initialize" {
		if d.opts.Nodes != nil && d.opts.Nodes.Begin(w, r, who, body) {
			return
		}
		d.initialize(w, r, *who, m, a)
		return
	}
	d.postLegacy(x, r, m, a)
}

// taskElsewhere serves a request for a task of another node, and reports whether it did.
func (d *Server) taskElsewhere(
	w nethttp.ResponseWriter, r *nethttp.Request, who *protocol.Caller, m *protocol.Message, body []byte,
) bool {
	if d.opts.Nodes == nil || !strings.HasPrefix(m.Method, "tasks/") {
		return false
	}
	raw, _ := rawjson.Get(m.Params, "taskId")
	id, ok := rawjson.String(raw)
	return ok && d.opts.Nodes.Task(w, r, who, id, body)
}

// unlimited removes a server's time limits from this request.
func unlimited(w nethttp.ResponseWriter) {
	nethttp.NewResponseController(w).SetWriteDeadline(noLimit)
}

// headerOf returns a function that reads headers by the names of the protocol.
func headerOf(h nethttp.Header) protocol.Header {
	return func(name string) []string {
		if name == "MCP-Protocol-Version" { // saves computing its canonical form
			return h["Mcp-Protocol-Version"]
		}
		return h.Values(name)
	}
}

// forwarded returns the headers that a relay may pass on, by canonical name; nil if there are none.
func (d *Server) forwarded(h nethttp.Header) (all map[string]string) {
	if d.opts.Forwards == nil {
		return nil
	}
	for _, name := range d.opts.Forwards() {
		if values := h[name]; len(values) > 0 {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = strings.Join(values, ", ")
		}
	}
	return all
}

// postModern serves a message without a session. It ignores session headers.
func (d *Server) postModern(
	x *exchange,
	r *nethttp.Request,
	m *protocol.Message,
	h protocol.Header,
	a accept,
) {
	if !(a.none || a.any || a.json && a.events) {
		answerFault(x.w, &protocol.Fault{Status: 406, Code: protocol.CodeInvalidRequest, ID: m.ID,
			Message: "Accept must list application/json and text/event-stream"})
		return
	}
	x.streams = true
	if m.Method == "subscriptions/listen" {
		if err := x.count(); err != nil {
			answerFault(x.w, &protocol.Fault{Status: 429, Code: protocol.CodeInternal, Message: err.Error(), ID: m.ID})
			return
		}
	}
	x.begun = true
	ctx, cancel := context.WithCancelCause(context.Background()) // the context of the connection, which may outlive r
	x.cancel = cancel
	stop := whenOver(r.Context(), x.lost)
	if x.framing == http2 {
		x.aside(func() { d.engine.Modern(ctx, x.who, m, h, x) })
	} else { // not by serveClient, so that the stack of a call is short
		d.engine.Modern(ctx, x.who, m, h, x)
	}
	x.waitForEngine(r.Context())
	stop()
}

// whenOver is context.AfterFunc, but calls the method AfterFunc of a context that has one, at a third
// of the cost.
func whenOver(ctx context.Context, f func()) (stop func() bool) {
	if own, ok := ctx.(interface {
		AfterFunc(f func()) (stop func() bool)
	}); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// initialize opens a session. A caller that opens one after the other is held to a
// rate, because a session costs more than a usual call.
func (d *Server) initialize(
	w nethttp.ResponseWriter,
	r *nethttp.Request,
	who protocol.Caller,
	m *protocol.Message,
	a accept,
) {
	if err := d.opts.Opens.Wait(r.Context(), "principal "+who.Principal); err != nil {
		f := d.tooBusy(w, err)
		f.ID = m.ID
		answerFault(w, f)
		return
	}
	s, response, f := d.engine.Open(who, m)
	if f != nil {
		answerFault(w, f)
		return
	}
	if s != nil {
		w.Header()["Mcp-Session-Id"] = []string{s.ID}
		if d.opts.Nodes != nil {
			d.opts.Nodes.Changed(r.Context(), s)
		}
	}
	if a.onlyEvents() {
		answerEvent(w, response)
		return
	}
	answerJSON(w, 200, response)
}

// postLegacy serves a message of a session. A client that does not accept event streams always gets
// JSON, and one that accepts nothing else always gets a stream.
func (d *Server) postLegacy(
	x *exchange,
	r *nethttp.Request,
	m *protocol.Message,
	a accept,
) {
	if !(a.none || a.any || a.json || a.events) {
		answerFault(x.w, &protocol.Fault{Status: 406, Code: protocol.CodeInvalidRequest, ID: m.ID,
			Message: "Accept must list application/json or text/event-stream"})
		return
	}
	s, by, f := d.sessionOf(r, &x.who)
	if f != nil {
		f.ID = m.ID
		answerFault(x.w, f)
		return
	}
	if !m.IsRequest() {
		d.accept(x.w, s, m)
		return
	}
	m.Trace, m.By = x.who.Trace, by
	x.session, x.begun = s, true
	x.streams, x.returns, x.events = a.events, resumable(s), a.onlyEvents()
	if x.framing == http2 {
		x.aside(func() { d.engine.Legacy(s, m, x) })
	} else {
		d.engine.Legacy(s, m, x)
	}
	if d.opts.Nodes != nil && s.TakeChanged() {
		d.opts.Nodes.Changed(r.Context(), s)
	}
	x.waitForEngine(r.Context())
}

func (d *Server) accept(w nethttp.ResponseWriter, s *session.Session, m *protocol.Message) {
	if f := d.engine.Accept(s, m); f != nil {
		answerFault(w, f)
		return
	}
	w.WriteHeader(202)
}

// sessionOf returns the session of a legacy request, and updates what the session knows about its
// principal from this credential. On a host without sessions it makes one for this request.
func (d *Server) sessionOf(
	r *nethttp.Request, who *protocol.Caller,
) (*session.Session, *session.Facts, *protocol.Fault) {
	version := ""
	if v := r.Header["Mcp-Protocol-Version"]; len(v) > 0 {
		version = v[0]
	}
	if version != "" {
		if rev, ok := mcpversion.Parse(version); !ok || rev.Modern() {
			return nil, nil, &protocol.Fault{Status: 400, Code: protocol.CodeInvalidRequest,
				Message: "MCP-Protocol-Version " + clip(
					version,
				) + " is not a supported revision with sessions"}
		}
	}
	sessions := d.engine.Sessions()
	if sessions == nil {
		s, f := d.engine.Stateless(*who, version)
		return s, nil, f
	}
	ids := r.Header["Mcp-Session-Id"]
	if len(ids) != 1 || ids[0] == "" {
		return nil, nil, &protocol.Fault{Status: 400, Code: protocol.CodeInvalidRequest,
			Message: "the header Mcp-Session-Id is missing; initialize returns one"}
	}
	s, ok := sessions.Get(ids[0], who.Principal)
	if !ok || otherContext(*who, s.Known().Context) {
		return nil, nil, &protocol.Fault{Status: 404, Code: protocol.CodeInvalidRequest,
			Message: "there is no such session, or it has ended; initialize again"}
	}
	return s, s.Authenticated(&who.Caller, who.Until), nil
}
