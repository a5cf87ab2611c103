package calls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/bus"
)

// watch looks at the clock for one call, with one timer: it tells when the
// call is slow, ends its context at the deadline, and makes sure that it is
// answered once, by its handler or, when that ignores the deadline, by the
// timer.
type watch struct {
	calls  *Calls
	req    *Request
	began  time.Time
	limit  time.Duration
	cancel context.CancelCauseFunc
	state  atomic.Int32 // 0 running, 1 done, 2 late

	mu    sync.Mutex
	timer *time.Timer
	next  stage
}

// stage is what the timer means when it fires next.
type stage uint8

const (
	slow stage = iota
	deadline
	late
)

// arm sets the timer to when the call is slow or, if nobody minds that, to
// its deadline.
func (w *watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	after := w.limit
	if w.next = deadline; w.req.Slow != nil && w.req.SlowAfter < w.limit {
		w.next, after = slow, w.req.SlowAfter
	}
	w.timer = time.AfterFunc(after, w.tick)
}

func (w *watch) tick() {
	if w.state.Load() != 0 {
		return
	}
	w.mu.Lock()
	now := w.next
	switch now {
	case slow:
		w.next = deadline
		w.timer.Reset(w.limit - w.req.SlowAfter)
	case deadline:
		if w.next = late; w.req.Late != nil {
			w.timer.Reset(w.calls.opts.Grace)
		}
	}
	w.mu.Unlock()
	switch now {
	case slow:
		w.req.Slow()
	case deadline:
		w.cancel(errDeadline)
	case late:
		w.late()
	}
}

// done ends the watch and reports whether the handler's word counts.
func (w *watch) done() bool {
	first := w.state.CompareAndSwap(0, 1)
	w.mu.Lock()
	w.timer.Stop()
	w.mu.Unlock()
	if !first {
		w.calls.overdue.Add(-1)
		w.calls.opts.Log.Warn("overdue call ended", "call", w.req.ID, "name", w.req.Entry.Listed, "took", time.Since(w.began))
	}
	return first
}

func (w *watch) late() {
	if !w.state.CompareAndSwap(0, 2) {
		return
	}
	c, r := w.calls, w.req
	c.overdue.Add(1)
	c.opts.Log.Warn("call ignores its deadline and keeps its slot", "call", r.ID, "name", r.Entry.Listed)
	timeout := timedOut(w.limit)
	res, err := c.settle(r, bus.Outcome{}, timeout, nil)
	r.Late(c.record(r, w.began, res, err, timeout))
}
