// Package pool makes sandboxes of one template each in advance of requests.
//
// A claimed sandbox never returns to the pool: the claimant closes it. Sandboxes that are being made count as
// supply, each claim triggers a refill, and after a failure the pool retries with growing delays and reports
// the reason.
package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// Pool is filled by Run. Its fields are set before Run and not changed. It is safe for concurrent use.
type Pool struct {
	Driver sandbox.Driver
	Spec   sandbox.Spec // what the waiting sandboxes are like
	Log    *slog.Logger // nil means nothing is logged
	Ready  int          // how many wait for a claim; 0 means 3
	Boots  int          // how many are made concurrently; 0 means twice the number of processors
	// Age is how long a sandbox may wait; 0 means half an hour. Tests set it, so as not to wait.
	Age time.Duration
	// Delay after the first failure, doubled after each further one up to a minute; 0 means half a second.
	Retry time.Duration
	Ping  time.Duration // how long a sandbox may take to answer before it is handed out; 0 means a second

	mu      sync.Mutex
	waiting []*waiting // the youngest last
	booting int
	running bool
	closed  bool
	until   time.Time // no boot starts before
	claimed time.Time // time of the last claim
	stats   Stats
	kick    chan struct{}
	boots   sync.WaitGroup
}

const (
	longestRetry = time.Minute
	// refillDelay is how long the refill waits after a claim while some sandboxes are left: the claimant uses
	// its sandbox now, and making others would slow it down.
	refillDelay = 25 * time.Millisecond
	closeWait   = 10 * time.Second // for closing the waiting sandboxes when the pool ends
)

// waiting is a sandbox that is not claimed yet.
type waiting struct {
	sandbox.Sandbox
	born  time.Time
	taken chan struct{} // closed when it does not wait any more
}

// Stats are the counters of a pool.
type Stats struct {
	Waiting, Booting int
	Hits, Misses     int           // claims served from the pool, and claims for which a sandbox was made
	Created          int           // sandboxes made in advance
	Expired, Failed  int           // closed for their age; closed because they did not answer or had ended
	Failures         int           // failed boots in a row
	Reason           string        // error of the last failed boot; "" if the last one succeeded
	Resume           time.Time     // when the next boot is tried after a failure
	Claiming, Worst  time.Duration // duration of the claims served from the pool: in total, and the longest
}

// HitRate is the share of claims that were served from the pool, from 0 to 1.
func (s Stats) HitRate() float64 {
	if s.Hits+s.Misses == 0 {
		return 0
	}
	return float64(s.Hits) / float64(s.Hits+s.Misses)
}

// ErrClosed is returned by Claim after the pool has ended.
var ErrClosed = errors.New("the pool of sandboxes has ended")

// Run fills the pool until ctx ends, and then closes the waiting sandboxes. It is called once.
func (p *Pool) Run(ctx context.Context) error {
	p.mu.Lock()
	p.kick, p.running = make(chan struct{}, 1), true
	p.mu.Unlock()
	for {
		next := p.fillPool(ctx)
		select {
		case <-ctx.Done():
			return p.endPool()
		case <-p.kick:
		case <-time.After(next):
		}
	}
}

// fillPool starts missing boots, closes sandboxes that are too old, and returns how long to wait before the next
// call at most.
func (p *Pool) fillPool(ctx context.Context) (next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	next = cmp.Or(p.Age, 30*time.Minute)
	for len(p.waiting) > 0 {
		oldest := p.waiting[0]
		if left := oldest.born.Add(cmp.Or(p.Age, 30*time.Minute)).Sub(now); left > 0 {
			next = min(next, left)
			break
		}
		p.waiting = p.waiting[1:]
		p.stats.Expired++
		p.dismiss(oldest)
	}
	most := cmp.Or(p.Boots, 2*runtime.NumCPU())
	if p.stats.Failures > 0 {
		most = 1 // until one works again
		if wait := p.until.Sub(now); wait > 0 {
			return min(next, wait)
		}
	}
	if wait := p.claimed.Add(refillDelay).Sub(now); wait > 0 && len(p.waiting) > 0 {
		return min(next, wait)
	}
	for p.booting < most && len(p.waiting)+p.booting < cmp.Or(p.Ready, 3) {
		p.booting++
		p.boots.Go(func() { p.boot(ctx) })
	}
	return next
}

// dismiss closes a sandbox that will not be handed out.
func (p *Pool) dismiss(w *waiting) {
	close(w.taken)
	p.boots.Go(func() { w.Close() })
}

// boot makes a sandbox and watches it while it waits.
func (p *Pool) boot(ctx context.Context) {
	s, err := p.Driver.Create(ctx, p.Spec)
	w := &waiting{Sandbox: s, born: time.Now(), taken: make(chan struct{})}
	p.mu.Lock()
	p.booting--
	switch {
	case err != nil:
		p.failed(ctx, err)
		p.mu.Unlock()
		p.wake()
		return
	case p.closed:
		p.mu.Unlock()
		s.Close()
		return
	}
	p.stats.Created++
	p.stats.Failures, p.stats.Reason = 0, ""
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	p.wake()
	select {
	case <-w.taken:
	case <-s.Done():
		p.lost(w)
	}
}

// failed delays the next boot.
func (p *Pool) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	wait := min(cmp.Or(p.Retry, 500*time.Millisecond)<<min(p.stats.Failures, 16), longestRetry)
	wait += rand.N(wait/4 + 1)
	p.stats.Failures++
	p.stats.Reason = err.Error()
	p.until = time.Now().Add(wait)
	if p.Log != nil {
		p.Log.WarnContext(ctx, "no sandbox could be made ready", "error", err, "failures", p.stats.Failures,
			"again", wait)
	}
}

// lost removes a sandbox that ended while it waited.
func (p *Pool) lost(w *waiting) {
	p.mu.Lock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.stats.Failed++
	}
	p.mu.Unlock()
	w.Close()
	p.wake()
}

func (p *Pool) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Claim returns a sandbox for spec: a waiting one if it can be adjusted to spec, else a new one. warm reports
// which. The caller closes it.
func (p *Pool) Claim(ctx context.Context, spec sandbox.Spec) (s sandbox.Sandbox, warm bool, err error) {
	began := time.Now()
	for p.fits(spec) {
		w, err := p.claimYoungest(spec)
		if err != nil {
			return nil, false, err
		}
		if w == nil {
			break
		}
		if err := p.prepare(ctx, w, spec); err == nil {
			p.updateStats(func(s *Stats) {
				s.Hits++
				s.Claiming += time.Since(began)
				s.Worst = max(s.Worst, time.Since(began))
			})
			return w.Sandbox, true, nil
		}
		p.updateStats(func(s *Stats) { s.Failed++ })
		w.Close()
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
	}
	if p.isClosed() {
		return nil, false, ErrClosed
	}
	p.updateStats(func(s *Stats) { s.Misses++ })
	s, err = p.Driver.Create(ctx, spec)
	return s, false, err
}

// fits reports whether a waiting sandbox could be adjusted to spec.
func (p *Pool) fits(spec sandbox.Spec) bool {
	return slices.Equal(spec.Trees, p.Spec.Trees) && spec.Strict == p.Spec.Strict &&
		spec.KeepOwners == p.Spec.KeepOwners && spec.Apart == p.Spec.Apart && spec.Users == nil && imageID(spec) == imageID(p.Spec)
}

func imageID(s sandbox.Spec) string {
	if s.Image == nil {
		return ""
	}
	return s.Image.ID
}

// claimYoungest removes the youngest waiting sandbox from the pool, and triggers a refill. If it cannot be
// adjusted to spec it stays.
func (p *Pool) claimYoungest(spec sandbox.Spec) (*waiting, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	n := len(p.waiting)
	if n == 0 {
		return nil, nil
	}
	w := p.waiting[n-1]
	if _, changes := w.Sandbox.(sandbox.Adjustable); !changes && !same(spec, p.Spec) {
		return nil, nil
	}
	p.waiting, p.claimed = p.waiting[:n-1], time.Now()
	close(w.taken)
	select {
	case p.kick <- struct{}{}:
	default:
	}
	return w, nil
}

// prepare checks that the sandbox answers and adjusts it to spec.
func (p *Pool) prepare(ctx context.Context, w *waiting, spec sandbox.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.Ping, time.Second))
	defer cancel()
	if same(spec, p.Spec) {
		return w.Ping(ctx)
	}
	a, ok := w.Sandbox.(sandbox.Adjustable)
	if !ok {
		return errors.New("the sandbox cannot be adjusted")
	}
	return a.Adjust(ctx, spec.Limits, spec.Env)
}

func same(a, b sandbox.Spec) bool { return a.Limits == b.Limits && slices.Equal(a.Env, b.Env) }

func (p *Pool) updateStats(f func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.stats)
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Stats returns the current counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Waiting, s.Booting = len(p.waiting), p.booting
	if s.Failures > 0 {
		s.Resume = p.until
	}
	return s
}

// endPool closes the waiting sandboxes and waits for everything that the pool started.
func (p *Pool) endPool() error {
	p.mu.Lock()
	p.closed = true
	for _, w := range p.waiting {
		p.dismiss(w)
	}
	p.waiting = nil
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		p.boots.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(closeWait):
		return errors.New("sandboxes of the pool could not be closed in time")
	}
}
