package limit

import (
	"context"
	"errors"
	"math"
)

// Context holds the limits of one context. Zero values mean no limit.
type Context struct {
	Calls int     // that run at once there, of all its callers together; more calls wait
	Rate  float64 // calls per second of one principal there
	Burst int     // calls of a principal that may arrive at once; 0 means twice the rate, at least 1
}

// contextLimits holds the limits of one context. Queue.mu guards it.
type contextLimits struct {
	slots
	rates  *Rates // nil: no rate
	limits Context
	loans  borrowedSlots // of slots, between the hosts of a group
}

// SetContexts replaces the limits of all contexts; contexts that are not named have none. Running calls
// continue, and waiting calls are admitted if slots are free now.
func (q *Queue) SetContexts(all map[string]Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, r := range q.contexts {
		if _, limited := all[name]; !limited {
			q.setLimits(name, r, Context{})
		}
		if r.limits == (Context{}) && r.used == 0 && r.waiting == 0 {
			delete(q.contexts, name)
		}
	}
	paced := false
	for name, c := range all {
		r := q.contexts[name]
		if r == nil {
			r = &contextLimits{slots: slots{division: division{plain: true}}}
			q.contexts[name] = r
		}
		q.setLimits(name, r, c)
		paced = paced || r.rates != nil
	}
	q.paced.Store(paced)
}

// setLimits changes the limits of one context. If the rate stays the same, the change fills no bucket.
func (q *Queue) setLimits(name string, r *contextLimits, c Context) {
	switch {
	case c.Rate <= 0:
		s := r.rates.Stats()
		q.stats.Allowed, q.stats.TooSoon = q.stats.Allowed+s.Allowed, q.stats.TooSoon+s.TooSoon
		r.rates = nil
		q.group.remove("context " + name)
	case r.rates == nil:
		r.rates = NewRates(Options{Rate: c.Rate, Burst: c.Burst})
		q.group.add("context "+name, r.rates)
	case r.limits.Rate != c.Rate || r.limits.Burst != c.Burst:
		r.rates.Set(c.Rate, c.Burst)
	}
	if r.limits = c; c.Calls > 0 {
		q.share(r)
		return
	}
	r.total, r.loans = math.MaxInt, borrowedSlots{}
	q.hand(&r.slots)
}

// inContext returns the slots of a pass's context and stores them in the pass, so that the pass
// releases the slots that it acquired even if the context changes.
func (q *Queue) inContext(p *Pass) *slots {
	if p.ofContext == nil {
		p.ofContext = &q.unlimited
		if r := q.contexts[p.named]; r != nil {
			p.ofContext = &r.slots
		}
	}
	return p.ofContext
}

// pace delays a call to the rate of its context, for a moment at most: a call that would have to be
// delayed for longer than Rates allows is refused.
func (q *Queue) pace(ctx context.Context, who Who) error {
	if !q.paced.Load() {
		return nil
	}
	q.mu.Lock()
	var rates *Rates
	if r := q.contexts[who.Context]; r != nil {
		rates = r.rates
	}
	q.mu.Unlock()
	err := rates.Wait(ctx, "principal "+who.Principal)
	if busy, ok := errors.AsType[*Busy](err); ok {
		return &Busy{Why: "too many calls in this context", Retry: busy.Retry}
	}
	return err
}
