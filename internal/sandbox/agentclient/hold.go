package agentclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// pace is the time that calls are given. It stands still while the link is
// held. The zero value goes.
type pace struct {
	mu     sync.Mutex
	let    chan struct{} // closed when it goes on; nil while it goes
	stands chan struct{} // closed when it stands still; nil while nobody waits for that
	timers map[*timer]struct{}
}

// timer is up when its time of the pace has passed. Whoever made it calls stop.
type timer struct {
	pace  *pace
	up    chan struct{} // closed when the time has passed
	left  time.Duration // when it began to run the last time
	since time.Time     // when that was
	runs  *time.Timer
}

// after makes a timer.
func (p *pace) after(d time.Duration) *timer {
	t := &timer{pace: p, up: make(chan struct{}), left: d}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timers == nil {
		p.timers = map[*timer]struct{}{}
	}
	p.timers[t] = struct{}{}
	if p.let == nil {
		t.run()
	}
	return t
}

// run lets it run for what is left. The caller holds the pace's lock.
func (t *timer) run() {
	t.since = time.Now()
	t.runs = time.AfterFunc(t.left, t.ring)
}

// ring is called when a run is over. One that was too late for the pace's
// standing still does not count: the next run rings at once.
func (t *timer) ring() {
	t.pace.mu.Lock()
	defer t.pace.mu.Unlock()
	if _, waits := t.pace.timers[t]; !waits || t.pace.let != nil || time.Since(t.since) < t.left {
		return
	}
	delete(t.pace.timers, t)
	close(t.up)
}

// stop lets go of it, whether it is up or not.
func (t *timer) stop() {
	t.pace.mu.Lock()
	defer t.pace.mu.Unlock()
	delete(t.pace.timers, t)
	if t.runs != nil {
		t.runs.Stop()
	}
}

// hold stops the time.
func (p *pace) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.let != nil {
		return
	}
	p.let = make(chan struct{})
	if p.stands != nil {
		close(p.stands)
		p.stands = nil
	}
	for t := range p.timers {
		t.runs.Stop()
		t.left = max(t.left-time.Since(t.since), 0)
	}
}

// goOn lets it go on.
func (p *pace) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.let == nil {
		return
	}
	close(p.let)
	p.let = nil
	for t := range p.timers {
		t.run()
	}
}

// held is nil, or a channel that is closed when the time goes on.
func (p *pace) held() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.let
}

// still is closed as soon as the time stands still, which it may do already.
func (p *pace) still() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.let != nil {
		now := make(chan struct{})
		close(now)
		return now
	}
	if p.stands == nil {
		p.stands = make(chan struct{})
	}
	return p.stands
}

// lost reports whether what is over as soon as that is closed must be left to
// itself: ctx has ended, and the agent that should end it is stopped. It waits
// until one of both is so.
func (p *pace) lost(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-over:
		return false
	case <-ctx.Done():
	}
	select {
	case <-over:
		return false
	case <-p.still():
	}
	select {
	case <-over: // before the agent was stopped
		return false
	default:
		return true
	}
}

// calledOff is why a call was left to itself, for which ctx has ended.
func calledOff(ctx context.Context) error {
	return fmt.Errorf("%w; the sandbox is paused, and ends what was called off when it goes on", context.Cause(ctx))
}

// Hold is for an agent that is about to be stopped, as it is when its sandbox
// is paused. From here on every call is answered sandbox.ErrPaused at once, but
// for Close; the time of calls that are under way stands still, and what they
// have to say to the agent, such as that it shall end a program, waits. A call
// whose ctx ends meanwhile, or had ended, does not: it is told as lost, and the
// agent ends it after Let. When Hold returns no frame is half written. It may be called again.
func (l *Link) Hold() {
	l.pace.hold()
	l.sending.Lock()
	//lint:ignore SA2001 whoever writes now does not know yet, and is waited for
	l.sending.Unlock()
}

// Let ends Hold and Still, once the agent goes on. After Still the agent hears
// what time it is, as its clock may have stood still too. It may be called
// again.
func (l *Link) Let() {
	l.mu.Lock()
	tell := l.endSilence()
	l.mu.Unlock()
	if tell {
		l.sending.Lock()
		l.write(agentprotocol.Go, 1, agentprotocol.Instant{Time: time.Now()}.Body())
		l.sending.Unlock()
	}
	l.pace.goOn()
}

// After gives a channel that is closed when so much of the time has passed that
// does not stand still while the link is held. stop lets go of it.
func (l *Link) After(d time.Duration) (up <-chan struct{}, stop func()) {
	t := l.pace.after(d)
	return t.up, t.stop
}

// paused is the answer to a call while the link is held.
func (l *Link) paused() error {
	if l.pace.held() == nil {
		return nil
	}
	return sandbox.ErrPaused
}
