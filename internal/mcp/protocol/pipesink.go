package protocol

import (
	"sync"
	"sync/atomic"
)

// pipeSink takes what one request sends back.
type pipeSink struct {
	p       *Pipe
	batch   *batch      // set when the answer is part of one
	counted bool        // it is among the open requests
	working atomic.Bool // it holds a slot
}

func (s *pipeSink) Note(msg []byte) bool { return s.p.send(msg) == nil }

func (s *pipeSink) Answer(_ int, msg []byte) {
	s.free()
	if s.batch != nil {
		s.batch.done(msg)
	} else {
		s.p.send(msg)
	}
	s.leave()
}

func (s *pipeSink) Drop() {
	s.free()
	if s.batch != nil {
		s.batch.done(nil)
	}
	s.leave()
}

func (s *pipeSink) Detach() {}

// Park says that the request waits for its client: it needs no slot. end ends
// the waiting, should the client fall silent for good.
func (s *pipeSink) Park(end func()) {
	if s.p.open.park(s, end) {
		s.free()
	} else {
		end()
	}
}

// Unpark says that the request goes on.
func (s *pipeSink) Unpark() { s.p.open.unpark(s) }

func (s *pipeSink) free() {
	if s.working.CompareAndSwap(true, false) {
		<-s.p.slots
	}
}

func (s *pipeSink) leave() {
	if s.counted {
		s.p.open.remove(s)
	}
}

// tally counts the open requests of a pipe and knows which of them wait for
// the client.
type tally struct {
	limit int

	mu     sync.Mutex
	n      int
	deaf   bool // the client sends no more
	parked map[*pipeSink]func()
	empty  chan struct{} // closed when n falls to 0; nil until somebody waits
}

// add reports false when there are too many.
func (t *tally) add() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= t.limit {
		return false
	}
	t.n++
	return true
}

func (t *tally) remove(s *pipeSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.parked, s)
	if t.n--; t.n == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// park reports false when nothing will come any more.
func (t *tally) park(s *pipeSink, end func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deaf {
		return false
	}
	if t.parked == nil {
		t.parked = make(map[*pipeSink]func())
	}
	t.parked[s] = end
	return true
}

func (t *tally) unpark(s *pipeSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.parked, s)
}

// deafen gives what ends the requests that wait, and lets none wait any more.
func (t *tally) deafen() (ends []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deaf = true
	for _, end := range t.parked {
		ends = append(ends, end)
	}
	return ends
}

// idle is closed when no request is open.
func (t *tally) idle() <-chan struct{} {
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
