package limit

import "time"

// How many calls run at once in a context is a number of all hosts of a group together. Each host has a share of it,
// and the shares add up to the number. A host whose callers wait for a slot borrows free ones of others, and keeps them
// as long as they are used: it asks for each loan again before that ends, and gives back what it does not use. So a
// call that finds a slot free asks no other host. The lender does without a loan for longer than the borrower has it,
// so that the hosts together never have more slots than there are, except while they differ about how many they are. A
// call is not ended because its host has fewer slots now: what runs above the number is borrowed first.

// slotsName is the name of the slots of contexts among what hosts lend.
const slotsName = "calls"

// SlotWant is how many slots a host wants of others.
type SlotWant struct {
	More int64            `json:"more,omitempty"` // besides those that it has borrowed and keeps
	Held map[string]int64 `json:"held,omitempty"` // what it keeps of each lender; the rest it gives back
}

// borrowedSlots are the loans of one context.
type borrowedSlots struct {
	lent, from map[string]slotLoan // by host
	asked      time.Time
}

type slotLoan struct {
	n     int64
	until time.Time
}

func sumOf(loans map[string]slotLoan, now time.Time) (n int64) {
	for host, l := range loans {
		if !now.Before(l.until) {
			delete(loans, host)
			continue
		}
		n += l.n
	}
	return n
}

// askPause is the shortest time between two requests for slots of a context.
const askPause = LoanTime / 40

// own returns the share of this host of a number: what cannot be divided is of the first hosts.
func (g *Group) own(all int64) int64 {
	if g == nil {
		return all
	}
	hosts, place := int64(g.hosts.Load()), int64(g.place.Load())
	n := all / hosts
	if place < all%hosts {
		n++
	}
	return n
}

// SetHosts says how many hosts there are, and which place this one has among them, from 0.
func (g *Group) SetHosts(hosts, place int) {
	hosts = max(hosts, 1)
	g.hosts.Store(int32(hosts))
	g.place.Store(int32(min(max(place, 0), hosts-1)))
	g.SetPart(1 / float64(hosts))
	g.Recount()
}

// Recount asks again for loans of slots that are still used, and gives back the others. It must be called several times
// in LoanTime.
func (g *Group) Recount() {
	g.mu.Lock()
	q := g.queue
	g.mu.Unlock()
	if q != nil {
		q.recount()
	}
}

// recount applies the shares and loans of all contexts, and asks for what is needed.
func (q *Queue) recount() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, r := range q.contexts {
		if r.limits.Calls <= 0 {
			continue
		}
		q.share(r)
		if r.waiting > 0 || len(r.loans.from) > 0 || r.used > r.total {
			q.askSlots(name, r)
		}
	}
}

// share sets how many slots of a context this host has now. q.mu must be held.
func (q *Queue) share(r *contextLimits) {
	now := clock()
	r.total = max(0, q.group.own(int64(r.limits.Calls))-sumOf(r.loans.lent, now)+sumOf(r.loans.from, now))
	q.hand(&r.slots)
}

// askSlots tells the group which slots of a context this host needs and keeps. q.mu must be held.
func (q *Queue) askSlots(name string, r *contextLimits) {
	now := clock()
	if r == nil || q.group == nil || q.group.hosts.Load() <= 1 && len(r.loans.from) == 0 ||
		now.Sub(r.loans.asked) < askPause {
		return
	}
	r.loans.asked = now
	need := max(0, r.used+int64(r.waiting)-(q.group.own(int64(r.limits.Calls))-sumOf(r.loans.lent, now)))
	w := Want{Rates: slotsName, Key: name, Slots: &SlotWant{Held: map[string]int64{}}}
	for host, l := range r.loans.from {
		keep := min(l.n, need)
		need -= keep
		if l.n = keep; keep == 0 {
			delete(r.loans.from, host)
		} else {
			r.loans.from[host] = l
			w.Slots.Held[host] = keep
		}
	}
	w.Slots.More = need
	q.share(r) // without what it gives back
	select {
	case q.group.want <- w:
	default: // the others are asked for enough
	}
}

// lendSlots extends what another host keeps of the slots of this one, takes the rest back, and lends it free ones.
func (q *Queue) lendSlots(self string, w Want, to string) Loan {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.contexts[w.Key]
	if r == nil || r.limits.Calls <= 0 || w.Slots == nil {
		return Loan{}
	}
	now := clock()
	sumOf(r.loans.lent, now)
	keep := min(max(w.Slots.Held[self], 0), r.loans.lent[to].n)
	r.loans.lend(to, keep, now)
	q.share(r) // what came back is for the callers that wait here first
	extra := int64(0)
	if r.waiting == 0 {
		extra = max(0, min(w.Slots.More, r.total-r.used))
	}
	r.loans.lend(to, keep+extra, now)
	q.share(r)
	return Loan{Slots: keep + extra}
}

func (b *borrowedSlots) lend(to string, n int64, now time.Time) {
	if n == 0 {
		delete(b.lent, to)
		return
	}
	if b.lent == nil {
		b.lent = map[string]slotLoan{}
	}
	b.lent[to] = slotLoan{n, now.Add(lenderTime)}
}

// BorrowSlots adds what another host lends of the slots that this one asked for at a time.
func (g *Group) BorrowSlots(w Want, from string, l Loan, asked time.Time) {
	g.mu.Lock()
	q := g.queue
	g.mu.Unlock()
	if q == nil || w.Slots == nil || l.Slots <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.contexts[w.Key]
	if r == nil || r.limits.Calls <= 0 {
		return // the loan ends by itself
	}
	if r.loans.from == nil {
		r.loans.from = map[string]slotLoan{}
	}
	r.loans.from[from] = slotLoan{l.Slots, asked.Add(LoanTime)}
	q.share(r)
}
