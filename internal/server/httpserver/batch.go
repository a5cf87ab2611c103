package httpserver

import (
	"bytes"
	nethttp "net/http"
	"slices"
	"sync"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
)

// Limits of a batch.
const (
	batchSize    = 1000 // messages
	batchWorkers = 16   // requests served at once
	noBatching   = "batches exist only in revision 2025-03-26; send one message at a time"
)

// batch collects the answers to the requests of one POST. x.mu guards it.
type batch struct {
	left    int
	answers [][]byte // until the response becomes a stream
}

// drain returns the collected answers.
func (b *batch) drain() [][]byte {
	out := b.answers
	b.answers = nil
	return out
}

// part is the sink of one request of a batch.
type part struct{ x *exchange }

func (p part) Note(msg []byte) bool   { return p.x.Note(msg) }
func (p part) Answer(_ int, m []byte) { p.x.partDone(m) }
func (p part) Drop()                  { p.x.partDone(nil) }
func (p part) Detach()                {} // only revision 2025-03-26 has batches, and its clients cannot resume a stream
func (p part) Late()                  { p.x.Late() }

// partDone adds the answer to one request, nil if there is none. The last one ends the exchange.
func (x *exchange) partDone(msg []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.batch.left--
	last := x.batch.left == 0
	x.answered = last
	switch {
	case x.wire != nil:
		if last {
			x.held.Release()
		}
		x.sendEvent(msg, last)
		return
	case msg != nil:
		x.batch.answers = append(x.batch.answers, bytes.Clone(msg))
	}
	if !last {
		return
	}
	x.held.Release()
	if x.w != nil && !x.clientClosed {
		x.replyAll(x.batch.drain())
	}
	x.finishExchange()
}

// replyAll writes the answers as one array. The caller holds x.mu.
func (x *exchange) replyAll(answers [][]byte) {
	if len(answers) == 0 {
		x.reply(202, nil)
		return
	}
	all := bytes.Join(answers, []byte(","))
	x.reply(200, slices.Concat([]byte("["), all, []byte("]")))
}

// postBatch serves several messages at once, if the client's revision has batches.
func (d *Server) postBatch(
	x *exchange,
	r *nethttp.Request,
	msgs []protocol.Message,
	faults []*protocol.Fault,
) {
	header := headerOf(r.Header)
	for i := range msgs {
		if msgs[i].Method == "initialize" || d.engine.EraOf(&msgs[i], header) == protocol.Modern {
			writeFault(x.w, 400, protocol.CodeInvalidRequest, noBatching)
			return
		}
		msgs[i].Trace, msgs[i].Forward = x.who.Trace, d.forwarded(r.Header)
	}
	s, by, f := d.sessionOf(r, &x.who)
	if f == nil && !s.Revision().Has(mcpversion.Batches) {
		f = &protocol.Fault{Status: 400, Code: protocol.CodeInvalidRequest, Message: noBatching}
	}
	if f == nil && len(msgs)+len(faults) > batchSize {
		f = &protocol.Fault{
			Status:  400,
			Code:    protocol.CodeInvalidRequest,
			Message: "a batch has at most 1000 messages",
		}
	}
	if f == nil && len(msgs) == 0 && len(faults) == 1 && faults[0].ID == nil {
		f = faults[0]
	}
	if f != nil {
		answerFault(x.w, f)
		return
	}
	for i := range msgs {
		msgs[i].By = by
	}
	x.session, x.begun = s, true
	a := readAccept(r.Header["Accept"])
	x.streams, x.events = a.events, a.onlyEvents()
	x.serveClient(r.Context(), func() { x.serveBatch(msgs, faults) })
}

// serveBatch serves the messages of a batch; a faulty one is answered like a request.
func (x *exchange) serveBatch(msgs []protocol.Message, faults []*protocol.Fault) {
	var requests []*protocol.Message
	for i := range msgs {
		if msgs[i].IsRequest() {
			requests = append(requests, &msgs[i])
		} else if f := x.server.engine.Accept(x.session, &msgs[i]); f != nil {
			faults = append(faults, f)
		}
	}
	x.batch = &batch{left: len(requests) + len(faults) + 1}
	for _, f := range faults {
		x.partDone(protocol.Respond(f))
	}
	serveAll(x.server.engine, x.session, requests, part{x})
	x.partDone(nil) // for this function itself
}

// serveAll serves requests, a limited number at a time, and returns when the engine needs no goroutine
// for any of them.
func serveAll(e engine, s *session.Session, requests []*protocol.Message, sink protocol.Sink) {
	var workers sync.WaitGroup
	work := make(chan *protocol.Message)
	for range min(batchWorkers, len(requests)) {
		workers.Go(func() {
			for m := range work {
				e.Legacy(s, m, sink)
			}
		})
	}
	for _, m := range requests {
		work <- m
	}
	close(work)
	workers.Wait()
}
