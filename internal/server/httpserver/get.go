package httpserver

import (
	nethttp "net/http"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
)

var noLimit time.Time

// sessionless answers GET and DELETE without sessions: in the modern era and on a host that serves
// without them.
func (d *Server) sessionless(w nethttp.ResponseWriter, r *nethttp.Request) bool {
	if d.engine.Sessions() != nil && !mcpversion.ModernName(r.Header.Get("Mcp-Protocol-Version")) {
		return false
	}
	notAllowed(w, "POST, OPTIONS")
	return true
}

// serveGet opens the stream of messages that belong to no request or, with Last-Event-ID, resumes a
// stream that broke. It calls found as soon as it has its session, or none.
func (d *Server) serveGet(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller, found func()) {
	defer found()
	if d.sessionless(w, r) {
		return
	}
	if a := readAccept(r.Header["Accept"]); !a.events && !a.any {
		writeFault(w, 406, protocol.CodeInvalidRequest, "Accept must list text/event-stream")
		return
	}
	s, _, f := d.sessionOf(r, &who)
	if f != nil {
		answerFault(w, f)
		return
	}
	st, after, resume := s.Queue(), uint64(0), false
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		// A 404 would mean to the client that its session has ended, and with a new stream it would
		// wait forever for the rest of the old one.
		if st, after, resume = s.FindStream(id); !resume {
			writeFault(
				w,
				400,
				protocol.CodeInvalidRequest,
				"no events are kept after Last-Event-ID "+clip(id)+"; open the stream without it",
			)
			return
		}
	}
	if r.ProtoMajor > 1 {
		unlimited(w)
	}
	counted, err := d.opts.Streams.Acquire(&who.Caller, 1)
	if err != nil {
		writeFault(w, 429, protocol.CodeInternal, err.Error())
		return
	}
	found() // the stream ends when the session moves, and the client opens another one
	d.listen(w, r, s, st, after, resume, counted)
}

// listen attaches the connection to the stream. A stream with a reader is taken over only by a client
// that has read it before, or if the previous reader has closed its connection.
func (d *Server) listen(
	w nethttp.ResponseWriter,
	r *nethttp.Request,
	s *session.Session,
	st *session.Stream,
	after uint64,
	resume bool,
	counted limit.Held,
) {
	g := newListener(counted)
	g.st, g.release = st, s.KeepAlive()
	g.wire = d.newWire(w, framingOf(r), g.over, g.wakeUp)
	g.wire.idle = true
	g.wire.mu.Lock() // nothing is written before the stream is attached
	err := st.Attach(g.wire, after, resume, resume)
	if old, ok := st.Reader().(*wire); err != nil && ok && old.clientClosed() {
		old.failWith(errGone)
		err = st.Attach(g.wire, after, resume, resume)
	}
	if err != nil {
		g.wire.mu.Unlock()
		g.release()
		g.counted.Release()
		writeFault(w, 409, protocol.CodeInvalidRequest, err.Error()+"; close it, or send Last-Event-ID to take over")
		return
	}
	takes := g.wire.kind == chunked
	if takes {
		w.Header().Set("Connection", "close") // the connection will not serve another request
	}
	g.wire.writeOpening(opening(st.Prime(), resumable(s), d.opts.Retry))
	if takes && g.wire.takeOver() {
		return
	}
	g.waitForClient(r)
}

// listener is a GET request that reads a stream.
type listener struct {
	wire    *wire
	st      *session.Stream
	release func()
	counted limit.Held      // among the streams, until the wire has ended
	ended   <-chan struct{} // the end of the stream; may be nil
	nudge   chan struct{}   // the wire needs the serving goroutine
	done    chan struct{}   // the wire has ended
}

func newListener(counted limit.Held) *listener {
	return &listener{counted: counted, nudge: make(chan struct{}, 1), done: make(chan struct{})}
}

func (g *listener) over(error) {
	g.counted.Release()
	if g.st != nil {
		g.st.Detach(g.wire)
		g.release()
	}
	close(g.done)
}

func (g *listener) wakeUp() { poke(g.nudge) }

// waitForClient blocks the serving goroutine while net/http owns the connection.
func (g *listener) waitForClient(r *nethttp.Request) {
	for {
		select {
		case <-g.done:
			return
		case <-g.nudge:
			g.wire.alive()
		case <-g.ended:
			g.wire.Close()
			<-g.done
			return
		case <-r.Context().Done():
			g.wire.failWith(errGone)
			<-g.done
			return
		}
	}
}

// delete ends a session.
func (d *Server) delete(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller) {
	if d.sessionless(w, r) {
		return
	}
	s, _, f := d.sessionOf(r, &who)
	if f != nil {
		answerFault(w, f)
		return
	}
	d.engine.Sessions().End(s, session.ErrClosed)
	w.WriteHeader(200)
}
