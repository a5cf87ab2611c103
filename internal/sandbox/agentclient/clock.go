package agentclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// clock measures the time that calls may take. It stops while the client is suspended. The zero value runs.
type clock struct {
	mu          sync.Mutex
	resumed     chan struct{} // closed when the clock resumes; nil while it runs
	stoppedChan chan struct{} // closed when the clock stops; nil while no goroutine waits for that
	timers      map[*timer]struct{}
}

// timer closes up when its time on the clock has passed. The caller of after must call stop.
type timer struct {
	clock *clock
	up    chan struct{} // closed when the time has passed
	left  time.Duration // time left when it last started to run
	since time.Time     // when it last started to run
	runs  *time.Timer
}

// after returns a running timer.
func (p *clock) after(d time.Duration) *timer {
	t := &timer{clock: p, up: make(chan struct{}), left: d}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timers == nil {
		p.timers = map[*timer]struct{}{}
	}
	p.timers[t] = struct{}{}
	if p.resumed == nil {
		t.runTimers()
	}
	return t
}

// runTimers starts the timer for the time that is left. The caller holds the clock's mutex.
func (t *timer) runTimers() {
	t.since = time.Now()
	t.runs = time.AfterFunc(t.left, t.fire)
}

// fire is called when the underlying timer expires. If the clock was stopped just before, it does nothing, and
// the next run fires at once.
func (t *timer) fire() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	if _, waits := t.clock.timers[t]; !waits || t.clock.resumed != nil || time.Since(t.since) < t.left {
		return
	}
	delete(t.clock.timers, t)
	close(t.up)
}

// stopTimers releases the timer, whether it has fired or not.
func (t *timer) stopTimers() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
	if t.runs != nil {
		t.runs.Stop()
	}
}

// pause stops the clock.
func (p *clock) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed != nil {
		return
	}
	p.resumed = make(chan struct{})
	if p.stoppedChan != nil {
		close(p.stoppedChan)
		p.stoppedChan = nil
	}
	for t := range p.timers {
		t.runs.Stop()
		t.left = max(t.left-time.Since(t.since), 0)
	}
}

// resume continues the clock.
func (p *clock) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed == nil {
		return
	}
	close(p.resumed)
	p.resumed = nil
	for t := range p.timers {
		t.runTimers()
	}
}

// paused returns nil, or a channel that is closed when the clock resumes.
func (p *clock) paused() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resumed
}

// stopped returns a channel that is closed once the clock stops, which it may have already.
func (p *clock) stopped() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed != nil {
		now := make(chan struct{})
		close(now)
		return now
	}
	if p.stoppedChan == nil {
		p.stoppedChan = make(chan struct{})
	}
	return p.stoppedChan
}

// mustAbandon waits until over is closed or until ctx has ended while the clock is stopped. It returns true in
// the second case: the agent that should end the operation is stopped, so the caller must abandon it.
func (p *clock) mustAbandon(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-over:
		return false
	case <-ctx.Done():
	}
	select {
	case <-over:
		return false
	case <-p.stopped():
	}
	select {
	case <-over: // it ended before the agent was stopped
		return false
	default:
		return true
	}
}

// errAbandoned returns the error of an abandoned call whose ctx has ended.
func errAbandoned(ctx context.Context) error {
	return fmt.Errorf("%w; the sandbox is paused and ends the call when it is resumed", context.Cause(ctx))
}

// Suspend prepares for the agent being stopped, as when its sandbox is paused. From then on every call but Close
// fails at once with sandbox.ErrPaused, the time of calls in progress stops, and their frames to the agent,
// such as signals, wait. A call whose ctx ends meanwhile, or has ended before, does not wait: its outcome is
// Lost, and the agent ends it after Continue. When Suspend returns, no frame is partially written. It may be
// called again.
func (l *Client) Suspend() {
	l.clock.pause()
	l.sending.Lock()
	//lint:ignore SA2001 a frame that is being written was not stopped by the pause, so wait for it
	l.sending.Unlock()
}

// Continue ends Suspend and Quiesce after the agent continues. After Quiesce it sends the current time, because
// the agent's clock may have stopped too. It may be called again.
func (l *Client) Continue() {
	l.mu.Lock()
	tell := l.endSilence()
	l.mu.Unlock()
	if tell {
		l.sending.Lock()
		l.writeFrame(agentprotocol.Resume, 1, agentprotocol.Instant{Time: time.Now()}.Body())
		l.sending.Unlock()
	}
	l.clock.resume()
}

// After returns a channel that is closed when d has passed on the clock that stops while the client is suspended.
// stop releases the timer.
func (l *Client) After(d time.Duration) (up <-chan struct{}, stop func()) {
	t := l.clock.after(d)
	return t.up, t.stopTimers
}

// paused returns sandbox.ErrPaused while the client is suspended.
func (l *Client) paused() error {
	if l.clock.paused() == nil {
		return nil
	}
	return sandbox.ErrPaused
}
