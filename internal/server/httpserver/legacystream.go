package httpserver

import (
	"crypto/rand"
	"io"
	nethttp "net/http"
	"sync"

	"gatehouse/internal/mcp/protocol"
)

// legacyStreamLimit is how many streams of the old transport are served at once.
const legacyStreamLimit = 1024

// pipe is the part of *protocol.Pipe that this file uses.
type pipe interface {
	Receive(frame []byte)
	Close(cause error)
	Done() <-chan struct{}
}

// legacyStreams holds the clients of revision 2024-11-05, which use two endpoints: a stream of all
// messages to them, and an address to which they post.
type legacyStreams struct {
	mu   sync.Mutex
	open map[string]*legacyStream
}

type legacyStream struct {
	principal string
	context   string // the chosen one; "" means the default
	bound     string
	pipe      pipe
}

func (e *legacyStreams) addStream(c *legacyStream) (id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open == nil {
		e.open = make(map[string]*legacyStream)
	}
	id = rand.Text()
	e.open[id] = c
	return id
}

func (e *legacyStreams) removeStream(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, id)
}

// findStream returns the stream of a caller. It returns none if the message names another context than
// the one in which the stream was opened, or comes with another binding.
func (e *legacyStreams) findStream(id string, who protocol.Caller) *legacyStream {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.open[id]
	if c == nil || c.principal != who.Principal || c.bound != who.Bound ||
		who.Context != "" && who.Context != c.context {
		return nil
	}
	return c
}

// openLegacyStream serves GET /sse: a stream whose first event names the address to post to.
func (d *Server) openLegacyStream(w nethttp.ResponseWriter, r *nethttp.Request) {
	who, ok := d.identify(w, r)
	if !ok {
		return
	}
	if r.Method != "GET" {
		notAllowed(w, "GET, OPTIONS")
		return
	}
	if a := readAccept(r.Header["Accept"]); !a.none && !a.events && !a.any {
		writeFault(w, 406, protocol.CodeInvalidRequest, "Accept must list text/event-stream")
		return
	}
	if r.ProtoMajor > 1 {
		unlimited(w)
	}
	counted, err := d.legacyShares.Acquire(&who.Caller, 1)
	if err != nil {
		writeFault(w, 503, protocol.CodeInternal, err.Error()+", or use POST /mcp")
		return
	}
	g := newListener(counted)
	g.wire = d.newWire(w, framingOf(r), g.over, g.wakeUp)
	g.wire.idle = true
	g.wire.mu.Lock() // nothing is written before the address
	c := &legacyStream{principal: who.Principal, context: who.Context, bound: who.Bound}
	c.pipe = d.newPipe(who, func(msg []byte) error {
		return g.wire.event([]byte("event: message\ndata: "), msg)
	})
	defer c.pipe.Close(errGone)
	id := d.legacy.addStream(c)
	defer d.legacy.removeStream(id)
	g.ended = c.pipe.Done()
	g.wire.writeOpening([]byte("event: endpoint\ndata: /messages?session=" + id + "\n\n"))
	g.waitForClient(r)
}

// postLegacyStream serves POST /messages: it accepts a message, which is answered on the stream.
func (d *Server) postLegacyStream(w nethttp.ResponseWriter, r *nethttp.Request) {
	who, ok := d.identify(w, r)
	if !ok {
		return
	}
	if f := wantJSON(r.Header); f != nil {
		answerFault(w, f)
		return
	}
	c := d.legacy.findStream(r.URL.Query().Get("session"), who)
	if c == nil {
		writeFault(w, 404, protocol.CodeInvalidRequest,
			"there is no such stream, or it has ended; open one with GET /sse")
		return
	}
	body, held, f := d.readBody(w, r, &who)
	if f != nil {
		answerFault(w, f)
		return
	}
	defer held.Release()
	c.pipe.Receive(body)
	w.WriteHeader(202)
	io.WriteString(w, "Accepted")
}
