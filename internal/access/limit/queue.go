package limit

import (
	"cmp"
	"container/list"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Queue lets so many calls run at once: for one session, in one context, of
// one tool, on this host. A call passes them in that order and takes a slot of
// each. The slots of a tool and of the host are divided among principals, so that
// one that has few calls finds a slot free, however long the calls of others
// take. Where there is none a call waits, and who is next is decided in turns:
// among the principals that wait and may have one, then among that principal's
// sessions, then in the order they came. Safe for concurrent use.
type Queue struct {
	calls, perSession, perTool, waiting, line int

	mu       sync.Mutex
	host     slots
	sessions map[caller]*slots
	tools    map[string]*slots
	contexts map[string]*contextLimits // those with limits of their own
	queued   int                       // calls that wait
	queuedBy map[string]int            // of each principal
	stats    Stats
	hold     time.Duration // how long a call usually runs, smoothed

	running int
	spare   []*slots // of sessions, to be used again
	passes  []*Pass  // of calls that have left, to be used again

	group     *Group      // of the hosts that have the rates of contexts in common; nil on a host of its own
	unlimited slots       // of contexts without limits
	paced     atomic.Bool // some context has a rate
}

const (
	mostSpare = 64
	mostTools = 10_000 // whose slots are kept while unused
)

// Who is a call as the queue knows it.
type Who struct {
	Holder
	Session string // "" is none, and no limit of a session's
	Context string
	Tool    string
}

type caller struct {
	Holder
	session string
}

// NewQueue makes a Queue.
func NewQueue(o Options) *Queue {
	q := &Queue{
		calls: cmp.Or(o.Calls, 1024), perSession: cmp.Or(o.Session, 64),
		sessions: map[caller]*slots{}, tools: map[string]*slots{}, contexts: map[string]*contextLimits{},
		queuedBy:  map[string]int{},
		unlimited: slots{division: division{plain: true, total: math.MaxInt}},
	}
	q.perTool = cmp.Or(o.Tool, q.calls)
	q.waiting = cmp.Or(o.Waiting, 16*q.calls)
	q.line = cmp.Or(o.Line, max(1, q.waiting/4))
	q.host.divide(int64(q.calls), 0)
	return q
}

// Pass is one call on its way through the queue, and then its slots.
type Pass struct {
	q     *Queue
	who   caller
	tool  string
	named string // its context
	stage int    // how many slots it holds: of its session, its context, its tool, the host
	at    *slots // where it waits; nil when it does not
	place *list.Element
	ready chan struct{}
	began time.Time // when it came, then when it was let in

	nested bool // it holds a slot of the host at most
	// Where it takes its slots, each set when it comes to them.
	ofSession, ofContext, ofTool *slots
}

// The slots a call takes, in order.
const (
	ofSession = iota
	ofContext // before the tool, so that waiting here delays no call elsewhere
	ofTool
	ofHost
	stages
)

// Enter lets a call in, now or when its turn has come, and waits for at most
// patience. The error is a *Busy or the cause of ctx. When the call has ended
// it leaves.
func (q *Queue) Enter(ctx context.Context, who Who, patience time.Duration) (*Pass, error) {
	if err := q.pace(ctx, who); err != nil {
		return nil, err
	}
	now := time.Now()
	q.mu.Lock()
	p := q.pass()
	p.q, p.who, p.tool, p.named, p.began = q, caller{who.Holder, who.Session}, who.Tool, who.Context, now
	if q.advance(p) {
		q.mu.Unlock()
		return p, nil
	}
	if err := q.admitCall(p); err != nil {
		q.abandon(p)
		q.mu.Unlock()
		return nil, err
	}
	p.ready = make(chan struct{})
	q.countPass(p, 1)
	q.mu.Unlock()
	return q.waitForSlot(ctx, p, patience)
}

// pass takes a spare pass or makes one.
func (q *Queue) pass() (p *Pass) {
	n := len(q.passes)
	if n == 0 {
		return &Pass{}
	}
	p, q.passes = q.passes[n-1], q.passes[:n-1]
	return p
}

// abandon takes a pass out of the line it waits in.
func (q *Queue) abandon(p *Pass) {
	p.at.removePass(p)
	q.giveBack(p)
}

// Nested lets in a call that another one makes. It never waits, because the
// two would wait for each other: where there is no slot, it runs on its
// parent's.
func (q *Queue) Nested() *Pass {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &Pass{q: q, began: time.Now(), nested: true}
	if q.running++; q.host.tryAcquire(p.who.Holder) {
		p.stage = stages
	}
	return p
}

// few is how many calls of a principal may wait although the waiting list is
// full: a principal with few calls is not refused because others make many.
const few = 16

// admitCall refuses a call that has to wait when those before it fill the waiting
// space, or when its session or principal fills too much of it.
func (q *Queue) admitCall(p *Pass) error {
	line, mine := 0, q.queuedBy[p.who.Principal]
	if p.stage == ofSession {
		line = p.at.waiting // itself included
	}
	var why string
	switch {
	case line > q.line:
		why = "too many calls of this session are waiting"
	case mine < few && q.queued < 2*q.waiting:
		return nil
	case mine >= q.waiting/2:
		why = "too many of your calls are waiting"
	case q.queued >= q.waiting:
		why = "this host has too many calls waiting"
	default:
		return nil
	}
	q.stats.Full++
	return &Busy{Why: why, Retry: q.estimate()}
}

// countPass counts a call in or out of the waiting list.
func (q *Queue) countPass(p *Pass, n int) {
	q.queued += n
	if q.queuedBy[p.who.Principal] += n; q.queuedBy[p.who.Principal] == 0 {
		delete(q.queuedBy, p.who.Principal)
	}
}

// estimate is when all calls that wait now could have run.
func (q *Queue) estimate() time.Duration {
	return min(time.Minute, max(time.Second, q.hold*time.Duration(1+q.queued/q.calls)))
}

// waitForSlot waits for the turn of a pass.
func (q *Queue) waitForSlot(ctx context.Context, p *Pass, patience time.Duration) (*Pass, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	var err error
	select {
	case <-p.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-late.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.at == nil { // its turn has come, perhaps just now
		return p, nil
	}
	q.countPass(p, -1)
	q.abandon(p)
	if err == nil {
		q.stats.Late++
		err = &Busy{Why: "this host has too many calls running", Retry: q.estimate()}
	}
	return nil, err
}

// advance takes the slots a pass still needs. Where there is none it joins the
// line there and advance reports false.
func (q *Queue) advance(p *Pass) bool {
	for p.stage < stages {
		s := q.slots(p, p.stage)
		if !s.tryAcquire(p.who.Holder) {
			s.join(p)
			if p.stage == ofContext && q.group != nil {
				q.askSlots(p.named, q.contexts[p.named])
			}
			return false
		}
		p.stage++
	}
	if p.ready != nil {
		now := time.Now()
		q.countPass(p, -1)
		q.stats.Queued++
		q.stats.Waited += now.Sub(p.began)
		p.began = now
	}
	q.stats.Entered++
	q.running++
	return true
}

// slots finds what a pass needs next, and makes it.
func (q *Queue) slots(p *Pass, stage int) *slots {
	switch stage {
	case ofSession:
		s := q.sessions[p.who]
		if s == nil {
			s = q.sessionSlots(p.who.session)
			q.sessions[p.who] = s
		}
		p.ofSession = s
		return s
	case ofContext:
		return q.inContext(p)
	case ofTool:
		s := q.tools[p.tool]
		if s == nil {
			s = &slots{}
			s.divide(int64(q.perTool), 0)
			q.tools[p.tool] = s
		}
		p.ofTool = s
		return s
	}
	return &q.host
}

// held is where a pass took its slot of a stage. They are still there: what is
// used or waited for is not taken away.
func (p *Pass) held(stage int) *slots {
	switch stage {
	case ofSession:
		return p.ofSession
	case ofContext:
		return p.ofContext
	case ofTool:
		return p.ofTool
	}
	return &p.q.host
}

// sessionSlots takes spare slots or makes some.
func (q *Queue) sessionSlots(session string) (s *slots) {
	if n := len(q.spare); n > 0 {
		s, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		s = &slots{}
	}
	s.plain, s.total = true, int64(q.perSession)
	if session == "" {
		s.total = math.MaxInt
	}
	return s
}

// Leave ends the call; once. The pass is another call's from then on.
func (p *Pass) Leave() {
	q := p.q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	if !p.nested {
		q.hold += (time.Since(p.began) - q.hold) / 16
	}
	q.giveBack(p)
	*p = Pass{}
	q.passes = append(q.passes[:min(len(q.passes), mostSpare)], p)
}

// giveBack releases what a pass holds, the host's slot first.
func (q *Queue) giveBack(p *Pass) {
	for p.stage > 0 {
		p.stage--
		s := p.held(p.stage)
		s.division.release(p.who.Holder, 1)
		q.hand(s)
		switch {
		case p.nested:
			p.stage = 0
		case s.inUse() > 0 || s.waiting > 0:
		case p.stage == ofSession:
			delete(q.sessions, p.who)
			q.spare = append(q.spare[:min(len(q.spare), mostSpare)], s)
		case p.stage == ofTool && len(q.tools) > mostTools:
			delete(q.tools, p.tool)
		}
	}
}

// hand gives free slots to the calls that wait for them. A call that gets one proceeds
// to the next stage, where it may have to wait again.
func (q *Queue) hand(s *slots) {
	for {
		p := s.nextPass()
		if p == nil {
			return
		}
		p.stage++
		if q.advance(p) {
			close(p.ready)
		}
	}
}

// Running is how many calls run.
func (q *Queue) Running() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running
}

// Stats of the queue.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Running, s.Waiting = q.running, q.queued
	for _, r := range q.contexts {
		o := r.rates.Stats()
		s.Keys, s.Held, s.Allowed, s.TooSoon = s.Keys+o.Keys, s.Held+o.Held, s.Allowed+o.Allowed, s.TooSoon+o.TooSoon
	}
	return s
}
