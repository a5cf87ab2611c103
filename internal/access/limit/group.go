package limit

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Group makes the rates of this host those of several hosts together. Each host has a part of each key's rate and burst,
// all have the same, and the parts of a key add up to one. A host that uses up its part borrows what others do not use,
// for a time: the lender does without it for a quarter longer. So no host asks another one before it serves, and together
// they allow no more than the rate, and in a burst at most one request more for each host, since each holds at least one.
// While hosts differ about how many they are, parts add up to more: to less than two if each counts most of them.
//
// Keys of sessions and connections are those of one host, and are not shared. It is safe for concurrent use.
type Group struct {
	self         string        // the name of this host
	part         atomic.Uint64 // bits of the part of this host
	hosts, place atomic.Int32
	want         chan Want

	mu    sync.Mutex
	rates map[string]*Rates
	queue *Queue // whose slots of contexts are shared; nil before Join
}

// Want is a key of which this host needs more than its part, or a context and what is needed of its slots.
type Want struct {
	Rates, Key string
	Slots      *SlotWant `json:",omitempty"`
}

// Loan is a part of a key's rate, and requests that can be made at once; or slots.
type Loan struct {
	Part     float64 `json:"part,omitempty"`
	Requests float64 `json:"requests,omitempty"`
	Slots    int64   `json:"slots,omitempty"` // of a context, in all
}

// LoanTime is how long a loan holds, counted by the borrower from before it asked.
const LoanTime = 2 * time.Second

// lenderTime is how long the lender does without it: clocks run at different rates.
const lenderTime = LoanTime + LoanTime/4

const (
	mostWanted = 1024
	// smallest is the part of its part that a host keeps of a key that it does not use.
	smallest = 0.1
	// mostLoans bounds the hosts that borrow one key.
	mostLoans = 64
)

// NewGroup makes a group of which this host is the only one yet. self is its name, by which the others know it.
func NewGroup(self string) *Group {
	g := &Group{self: self, want: make(chan Want, mostWanted), rates: map[string]*Rates{}}
	g.hosts.Store(1)
	g.SetPart(1)
	return g
}

// SetPart sets the part of this host, 1 divided by the number of hosts.
func (g *Group) SetPart(part float64) { g.part.Store(math.Float64bits(min(1, max(0, part)))) }

// Wants yields the keys of which this host needs more. If no code receives them, the parts stay as they are.
func (g *Group) Wants() <-chan Want { return g.want }

// add makes rates those of the group, under a name that is the same on all hosts.
func (g *Group) add(name string, r *Rates) {
	if g == nil || r == nil {
		return
	}
	r.mu.Lock()
	r.group, r.name = g, name
	r.mu.Unlock()
	g.mu.Lock()
	g.rates[name] = r
	g.mu.Unlock()
}

func (g *Group) remove(name string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	delete(g.rates, name)
	g.mu.Unlock()
}

func (g *Group) find(name string) *Rates {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rates[name]
}

// Lend gives another host what this one does not need of a key.
func (g *Group) Lend(w Want, to string) Loan {
	if w.Rates == slotsName {
		g.mu.Lock()
		q := g.queue
		g.mu.Unlock()
		if q == nil {
			return Loan{}
		}
		return q.lendSlots(g.self, w, to)
	}
	r := g.find(w.Rates)
	if r == nil || !shared(w.Key) {
		return Loan{}
	}
	return r.lend(w.Key, to, math.Float64frombits(g.part.Load()))
}

// Borrow adds what other hosts lend together, asked for at a time.
func (g *Group) Borrow(w Want, l Loan, asked time.Time) {
	r := g.find(w.Rates)
	if r == nil || !shared(w.Key) || l.Part <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rate == 0 {
		return
	}
	b := r.bucket(w.Key)
	b.got, b.gotUntil = l.Part, asked.Add(LoanTime)
	b.full = min(r.capacity(b), b.full+l.Requests)
}

// shared reports whether a key is one of all hosts.
func shared(key string) bool {
	return !strings.HasPrefix(key, "session ") && !strings.HasPrefix(key, "connection ")
}

// loans is what a bucket lends.
type loans struct {
	to map[string]lent
}

type lent struct {
	part  float64
	until time.Time
}

func (l *loans) sum(but string) (part float64) {
	for to, x := range l.to {
		if to != but {
			part += x.part
		}
	}
	return part
}

// portion returns the part of a key's rate that this host has now. r.mu must be held.
func (r *Rates) portion(b *bucket) float64 {
	if r.group == nil || !shared(b.key) {
		return 1
	}
	base := math.Float64frombits(r.group.part.Load())
	now := base
	if b.loans != nil {
		now = max(base*smallest, base-b.loans.sum(""))
	}
	if b.got > 0 && clock().Before(b.gotUntil) {
		now += b.got
	}
	return min(1, now)
}

// capacity is the burst of a bucket, at least one request. r.mu must be held.
func (r *Rates) capacity(b *bucket) float64 { return max(1, r.burst*r.portion(b)) }

// forgetLoans ends the loans that are over. It is called after the bucket was filled, so that it has filled without what
// was lent. r.mu must be held.
func (r *Rates) forgetLoans(b *bucket, now time.Time) {
	if b.loans == nil {
		return
	}
	for to, x := range b.loans.to {
		if !now.Before(x.until) {
			delete(b.loans.to, to)
		}
	}
	if len(b.loans.to) == 0 {
		b.loans = nil
	}
}

// lend lends what is not needed of a key: nothing of one that is used a lot here, half of one that is used a little.
func (r *Rates) lend(key, to string, base float64) Loan {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rate == 0 || base >= 1 {
		return Loan{}
	}
	b, now := r.bucket(key), clock()
	keep := base * smallest
	if now.Sub(b.used) < LoanTime {
		if keep = base / 2; b.full < r.capacity(b)/2 {
			keep = base
		}
	}
	if b.loans == nil {
		b.loans = &loans{to: map[string]lent{}}
	}
	was, known := b.loans.to[to]
	if !known && len(b.loans.to) >= mostLoans {
		return Loan{}
	}
	part := max(0, base-keep-b.loans.sum(to))
	if part == 0 || part < was.part { // what was lent before ends by itself
		r.forgetLoans(b, now)
		return Loan{}
	}
	b.loans.to[to] = lent{part, now.Add(lenderTime)}
	l := Loan{Part: part}
	if !known {
		l.Requests = max(0, min(b.full-1, r.burst*part))
		b.full -= l.Requests
	}
	return l
}

// askMore tells the group that a key needs more than this host has of it, twice in the time of a loan at most.
// r.mu must be held.
func (r *Rates) askMore(b *bucket) {
	if r.group == nil || !shared(b.key) || b.full > r.capacity(b)/2 || clock().Sub(b.asked) < LoanTime/2 ||
		math.Float64frombits(r.group.part.Load()) >= 1 {
		return
	}
	b.asked = clock()
	select {
	case r.group.want <- Want{Rates: r.name, Key: b.key}:
	default: // the others are asked for enough keys
	}
}
