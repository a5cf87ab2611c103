package limit

import (
	"cmp"
	"container/list"
	"context"
	"math"
	"sync"
	"time"
)

// Rates hold requests to a rate, by key: a principal, a session, an address.
// Each key has a bucket that fills at the rate and holds a burst. Buckets of
// keys that have not come for long are forgotten, full ones first. Safe for
// concurrent use.
type Rates struct {
	keys int
	hold time.Duration

	mu      sync.Mutex
	rate    float64 // per second; 0 means no limit
	burst   float64
	buckets map[string]*list.Element // of *bucket
	recent  list.List                // the one used last in front
	held    map[string]int           // requests that are kept waiting, by key
	waiting int                      // all of them
	allowed uint64
	tooSoon uint64
	group   *Group // of the hosts that have the rates in common; nil on a host of its own
	name    string // in the group
}

// bucket is how much one key may still do. It may owe: what is held has been
// taken in advance.
type bucket struct {
	key  string
	full float64 // requests
	at   time.Time

	// What follows is of hosts that have the rates in common; see Group.
	used, asked, gotUntil time.Time
	got                   float64 // part that others lend
	loans                 *loans
}

const (
	mostHeld    = 4096 // requests kept waiting at once
	mostHeldKey = 256  // of one key
)

// NewRates makes Rates.
func NewRates(o Options) *Rates {
	r := &Rates{
		keys: cmp.Or(o.Keys, 65_536), hold: cmp.Or(o.Hold, time.Second),
		buckets: map[string]*list.Element{}, held: map[string]int{},
	}
	r.Set(o.Rate, o.Burst)
	return r
}

// Set changes the rate, per second, and the burst, as Options has them.
// Every key starts with a full bucket.
func (r *Rates) Set(rate float64, burst int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate, r.burst = max(0, rate), float64(burst)
	if r.burst <= 0 {
		r.burst = max(1, math.Ceil(2*r.rate))
	}
	clear(r.buckets)
	r.recent.Init()
}

// Allow counts one request against all keys, empty ones left out. When it is
// one too many for any of them it counts against none, and retry says when it
// would be allowed.
func (r *Rates) Allow(keys ...string) (ok bool, retry time.Duration) {
	if r == nil {
		return true, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rate == 0 {
		return true, 0
	}
	if retry = r.reserveTokens(keys, 0); retry > 0 {
		r.tooSoon++
		return false, retry
	}
	r.allowed++
	return true, 0
}

// Wait is Allow for callers that can be kept waiting: a request that comes a
// little too soon is held until its turn, so that a client which sends as fast
// as it is answered is slowed down instead of refused over and over. One that
// would have to be held for longer than Options.Hold is refused with a *Busy,
// after that time: a client that minds no refusal costs little then. Only what
// there is no space to hold is refused at once. The other error is the cause of
// ctx.
func (r *Rates) Wait(ctx context.Context, keys ...string) error {
	if r == nil {
		return nil
	}
	wait, held, err := r.reserve(keys)
	if !held {
		return err
	}
	defer r.releaseKeys(keys)
	turn := time.NewTimer(wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reserve takes a request now, or in advance, or not. It says for how long it
// is to be held and what it is told then.
func (r *Rates) reserve(keys []string) (wait time.Duration, held bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rate == 0 {
		return 0, false, nil
	}
	hold := max(0, r.hold)
	space := hold > 0 && r.waiting < mostHeld
	for _, k := range keys {
		space = space && (k == "" || r.held[k] < mostHeldKey)
	}
	if !space {
		hold = 0
	}
	wait = r.due(keys)
	if retry := r.reserveTokens(keys, hold); retry > 0 {
		r.tooSoon++
		wait, err = hold, &Busy{Why: "too many requests", Retry: retry}
	} else {
		r.allowed++
	}
	if wait <= 0 {
		return 0, false, err
	}
	r.waiting++
	for _, k := range keys {
		r.held[k]++
	}
	return wait, true, err
}

func (r *Rates) releaseKeys(keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	for _, k := range keys {
		if r.held[k]--; r.held[k] <= 0 {
			delete(r.held, k)
		}
	}
}

// reserveTokens counts a request against all keys unless one of them would have to
// wait longer than hold; then it says how long until it need not.
func (r *Rates) reserveTokens(keys []string, hold time.Duration) (retry time.Duration) {
	if wait := r.due(keys); wait > hold {
		return wait - hold
	}
	for _, k := range keys {
		if k != "" {
			b := r.bucket(k)
			b.full--
			if r.group != nil {
				b.used = b.at
				r.askMore(b)
			}
		}
	}
	return 0
}

// due is how long until all keys have a request left.
func (r *Rates) due(keys []string) (wait time.Duration) {
	for _, k := range keys {
		if k == "" {
			continue
		}
		b := r.bucket(k)
		if lack := 1 - b.full; lack > 1e-9 { // a turn that was waited for may come a rounding too soon
			wait = max(wait, time.Duration(math.Ceil(lack/(r.rate*r.portion(b))*float64(time.Second))))
			r.askMore(b)
		}
	}
	return wait
}

// clock is replaced by tests.
var clock = time.Now

// bucket finds a key's bucket, filled up to now.
func (r *Rates) bucket(key string) *bucket {
	now := clock()
	if e := r.buckets[key]; e != nil {
		r.recent.MoveToFront(e)
		b := e.Value.(*bucket)
		b.full = min(r.capacity(b), b.full+now.Sub(b.at).Seconds()*r.rate*r.portion(b))
		b.at = now
		r.forgetLoans(b, now)
		return b
	}
	if len(r.buckets) >= r.keys {
		r.dropOldest()
	}
	b := &bucket{key: key, at: now}
	b.full = r.capacity(b)
	r.buckets[key] = r.recent.PushFront(b)
	return b
}

// dropOldest drops the key that has not come for the longest time.
func (r *Rates) dropOldest() {
	e := r.recent.Back()
	delete(r.buckets, e.Value.(*bucket).key)
	r.recent.Remove(e)
}

// Stats of the rates.
func (r *Rates) Stats() Stats {
	if r == nil {
		return Stats{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Keys: len(r.buckets), Held: r.waiting, Allowed: r.allowed, TooSoon: r.tooSoon}
}
