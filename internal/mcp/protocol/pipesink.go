package protocol

import (
	"sync"
	"sync/atomic"

	"gatehouse/internal/access/limit"
)

// pipeSink is the Sink of a request on a Pipe.
type pipeSink struct {
	p       *Pipe
	batch   *batch      // set when the answer is part of one
	counted bool        // it is among the open requests
	working atomic.Bool // it occupies a slot
	held    limit.Held  // the bytes of its frame
}

func (s *pipeSink) Note(msg []byte) bool { return s.p.sendMessage(msg) == nil }

func (s *pipeSink) Answer(_ int, msg []byte) {
	s.releaseSlot()
	s.held.Release()
	if s.batch != nil {
		s.batch.done(msg)
	} else {
		s.p.sendMessage(msg)
	}
	s.removeOpen()
}

func (s *pipeSink) Drop() {
	s.releaseSlot()
	s.held.Release()
	if s.batch != nil {
		s.batch.done(nil)
	}
	s.removeOpen()
}

func (s *pipeSink) Detach() {}

// Park frees the slot of a request that waits for its client. end is called if the
// client closes its input.
func (s *pipeSink) Park(end func()) {
	if s.p.open.park(s, end) {
		s.releaseSlot()
	} else {
		end()
	}
}

// Unpark reports that the request no longer waits for its client.
func (s *pipeSink) Unpark() { s.p.open.unpark(s) }

func (s *pipeSink) releaseSlot() {
	if s.working.CompareAndSwap(true, false) {
		<-s.p.slots
	}
}

func (s *pipeSink) removeOpen() {
	if s.counted {
		s.p.open.removeSink(s)
	}
}

// openRequests counts the open requests of a pipe and records which of them wait for the client.
type openRequests struct {
	limit int

	mu          sync.Mutex
	n           int
	inputClosed bool // the client has closed its input
	parked      map[*pipeSink]func()
	empty       chan struct{} // closed when n becomes 0; nil until idle is called
}

// acquire returns false if too many requests are open.
func (t *openRequests) acquire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= t.limit {
		return false
	}
	t.n++
	return true
}

func (t *openRequests) removeSink(s *pipeSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.parked, s)
	if t.n--; t.n == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// park returns false if the client has closed its input.
func (t *openRequests) park(s *pipeSink, end func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inputClosed {
		return false
	}
	if t.parked == nil {
		t.parked = make(map[*pipeSink]func())
	}
	t.parked[s] = end
	return true
}

func (t *openRequests) unpark(s *pipeSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.parked, s)
}

// closeInput returns the end functions of the requests that wait for the client. After
// it park returns false.
func (t *openRequests) closeInput() (ends []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inputClosed = true
	for _, end := range t.parked {
		ends = append(ends, end)
	}
	return ends
}

// idle returns a channel that is closed when no request is open.
func (t *openRequests) idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	done := make(chan struct{})
	switch {
	case t.n == 0:
		close(done)
	case t.empty == nil:
		t.empty = done
	default:
		return t.empty
	}
	return done
}
