package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// link is one newline-framed connection, with the HTTP requests that wait for its messages.
type link struct {
	conn io.ReadWriteCloser
	seen Witness

	mu       sync.Mutex // guards what follows, and writing
	revision string     // "" until a legacy server has named it
	waiting  map[string]*waiter
	order    []*waiter // those of waiting, the oldest first
	stream   *waiter   // a legacy client's GET
	held     [][]byte  // for any reader, while there is none
	ended    bool
}

// waiter is an HTTP request that is being answered.
type waiter struct {
	id, method, token string
	ch                chan []byte
}

const mostHeld = 256 // messages

func (l *link) write(msg []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.conn.Write(append(oneLine(msg), '\n'))
	return err
}

// awaitReply registers a waiter and sends its request.
func (l *link) awaitReply(w *waiter, msg []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return fmt.Errorf("the connection has ended")
	}
	if l.waiting[w.id] != nil {
		return fmt.Errorf("a request with the id %s is in flight on this connection", w.id)
	}
	l.waiting[w.id] = w
	l.order = append(l.order, w)
	_, err := l.conn.Write(append(oneLine(msg), '\n'))
	return err
}

func (l *link) listen(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = w
	for _, msg := range l.held {
		w.ch <- msg
	}
	l.held = nil
	if l.ended {
		close(w.ch)
		l.stream = nil
	}
}

// dropWaiter is called when an HTTP client has disconnected. In the modern revision that cancels its request, for which
// newline-framed connections have a notification.
func (l *link) dropWaiter(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream == w {
		l.stream = nil
	}
	if w.id == "" || l.waiting[w.id] != w {
		return
	}
	l.remove(w)
	if l.revision >= modernRevision {
		fmt.Fprintf(l.conn, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`+"\n", w.id)
	}
}

// remove removes a waiter. l.mu must be held.
func (l *link) remove(w *waiter) {
	delete(l.waiting, w.id)
	for i, x := range l.order {
		if x == w {
			l.order = append(l.order[:i:i], l.order[i+1:]...)
			return
		}
	}
}

func (l *link) close() { _ = l.conn.Close() }

// read passes each message to its waiter, until the connection ends.
func (l *link) read() {
	lines := bufio.NewReaderSize(l.conn, 1<<16)
	for {
		msg, err := lines.ReadBytes('\n')
		if len(msg) > 1 {
			l.route(msg[:len(msg)-1])
		}
		if err != nil {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, w := range l.order {
		close(w.ch)
	}
	clear(l.waiting)
	l.order = nil
	if l.stream != nil {
		close(l.stream.ch)
		l.stream = nil
	}
}

func (l *link) route(msg []byte) {
	var e envelope
	err := json.Unmarshal(msg, &e)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.owner(e)
	if e.isResponse() && w != nil && w.method == "initialize" && e.Result != nil {
		l.revision = e.Result.ProtocolVersion
	}
	if l.seen != nil {
		s := Sighting{Revision: l.revision, Message: msg}
		if e.isResponse() && w != nil {
			s.Answers = w.method
		}
		l.seen.See(s)
	}
	switch {
	case err != nil:
		return // the witness has seen that it is no JSON
	case w != nil:
		w.ch <- msg
		if e.isResponse() {
			l.remove(w)
		}
	case !e.isResponse() && len(l.held) < mostHeld:
		l.held = append(l.held, msg)
	}
}

// owner returns the waiter for a message: that of the request it belongs to, or the reader that has waited longest.
// l.mu must be held.
func (l *link) owner(e envelope) *waiter {
	switch {
	case e.isResponse():
		return l.waiting[string(e.ID)]
	case e.Params.Meta.Subscription != nil:
		return l.waiting[string(e.Params.Meta.Subscription)]
	case e.Params.ProgressToken != nil:
		for _, w := range l.order {
			if w.token == string(e.Params.ProgressToken) {
				return w
			}
		}
		return nil
	case l.revision < modernRevision && l.stream != nil && len(l.order) == 0:
		return l.stream
	case len(l.order) > 0:
		return l.order[0]
	}
	return nil
}
