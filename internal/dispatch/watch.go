package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/dispatch/bus"
)

// watch applies the time limits of one call with one timer: it reports that the call is slow, ends its context at
// the deadline, and ensures that the call is answered once, by its handler or, if that ignores the deadline, by
// the timer.
type watch struct {
	calls  *Dispatcher
	req    *Request
	began  time.Time
	limit  time.Duration
	cancel context.CancelCauseFunc
	state  atomic.Int32 // 0 running, 1 done, 2 late

	mu    sync.Mutex
	alarm *alarm
	next  stage
}

// alarm is a timer that is reused by one watch after the other. Alarms are pooled, because allocating a timer for
// each call would cost half as much as the rest of the watch.
type alarm struct {
	timer *time.Timer
	watch atomic.Pointer[watch]
}

// newAlarm returns an alarm whose timer is stopped.
func newAlarm() any {
	a := &alarm{}
	a.timer = time.AfterFunc(time.Hour, a.fire)
	a.timer.Stop()
	return a
}

func (a *alarm) fire() {
	if w := a.watch.Load(); w != nil {
		w.tick()
	}
}

// stage is the meaning of the timer's next expiry.
type stage uint8

const (
	slow stage = iota
	deadline
	late
)

// arm sets the timer to the time at which the call counts as slow or, if slowness is not reported, to its
// deadline.
func (w *watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	after := w.limit
	if w.next = deadline; w.req.Slow != nil && w.req.SlowAfter < w.limit {
		w.next, after = slow, w.req.SlowAfter
	}
	w.alarm = w.calls.alarms.Get().(*alarm)
	w.alarm.watch.Store(w)
	w.alarm.timer.Reset(after)
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
		w.alarm.timer.Reset(w.limit - w.req.SlowAfter)
	case deadline:
		if w.next = late; w.req.Late != nil {
			w.alarm.timer.Reset(w.calls.opts.Grace)
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

// done ends the watch and reports whether the handler's result counts.
func (w *watch) done() bool {
	first := w.state.CompareAndSwap(0, 1)
	w.mu.Lock()
	if w.alarm.timer.Stop() { // it will not fire, and no other goroutine sets it
		w.alarm.watch.Store(nil)
		w.calls.alarms.Put(w.alarm)
	}
	w.mu.Unlock()
	if !first {
		w.calls.overdue.Add(-1)
		w.calls.opts.Log.Warn(
			"overdue call ended",
			"call",
			w.req.ID,
			"name",
			w.req.Entry.Listed,
			"took",
			time.Since(w.began),
		)
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
	res, err := c.finishCall(r, bus.Outcome{}, timeout, nil)
	r.Late(c.record(r, w.began, res, err, timeout))
}
