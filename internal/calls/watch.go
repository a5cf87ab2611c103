package calls

import (
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/bus"
)

// watch looks at the clock for one call: it tells when the call is slow, and
// makes sure that it is answered once, by its handler or, when that ignores
// its deadline, by the timer.
type watch struct {
	calls *Calls
	req   *Request
	began time.Time
	limit time.Duration
	state atomic.Int32 // 0 running, 1 done, 2 late

	mu    sync.Mutex
	timer *time.Timer
	slow  bool // the next tick says that the call is slow
}

// arm sets the timer to when the call is slow or, if nobody minds that, to
// when it is late.
func (w *watch) arm() {
	r := w.req
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.Slow != nil && r.SlowAfter < w.limit:
		w.slow = true
		w.timer = time.AfterFunc(r.SlowAfter, w.tick)
	case r.Late != nil:
		w.timer = time.AfterFunc(w.limit+w.calls.opts.Grace, w.tick)
	}
}

func (w *watch) tick() {
	if w.state.Load() != 0 {
		return
	}
	w.mu.Lock()
	slow := w.slow
	w.slow = false
	if slow && w.req.Late != nil {
		w.timer.Reset(w.limit + w.calls.opts.Grace - w.req.SlowAfter)
	}
	w.mu.Unlock()
	if slow {
		w.req.Slow()
	} else {
		w.late()
	}
}

// done ends the watch and reports whether the handler's word counts.
func (w *watch) done() bool {
	first := w.state.CompareAndSwap(0, 1)
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
	}
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
	res, err := c.settle(r, bus.Outcome{}, timedOut(w.limit), nil)
	c.record(r, w.began, res, err)
	r.Late(res, err)
}
