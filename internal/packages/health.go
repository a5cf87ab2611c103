package packages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/tool"
)

// Kinds of requests that had no result.
const (
	errRPC         = "rpc"         // the server answered with an error
	errTimeout     = "timeout"     // the server did not answer in time
	errLost        = "lost"        // the server or the connection ended before the answer
	errCancelled   = "cancelled"   // the caller did not wait for the answer
	errUnavailable = "unavailable" // the server was stopped, or could not be started
	errRefused     = "refused"     // not sent, because the server fails or has too many requests
)

// Health describes how the server of a package serves. Counts begin with the host.
type Health struct {
	Circuit  string            `json:"circuit" doc:"closed; open, which refuses calls because the server did not answer; or half-open, while one call tries it again" enum:"closed,open,half-open"`
	Retry    *time.Time        `json:"retry,omitempty" doc:"when an open circuit lets the next call try"`
	Calls    uint64            `json:"calls" doc:"requests of callers"`
	Running  int               `json:"running,omitempty" doc:"requests that have not ended"`
	Errors   map[string]uint64 `json:"errors,omitempty" doc:"requests without a result, by kind: rpc (an error of the server), timeout, lost (the server ended), cancelled, unavailable (it cannot be started) and refused (by the circuit, or as too many at once)"`
	Restarts uint64            `json:"restarts,omitempty" doc:"starts of its server after the first"`
	P50      float64           `json:"p50_ms,omitempty" doc:"milliseconds within which half of the answers came, rounded up to a bucket"`
	P99      float64           `json:"p99_ms,omitempty" doc:"milliseconds within which 99 of 100 answers came, rounded up to a bucket"`

	Latency Latency `json:"-"`
}

// LatencyBounds are the upper bounds of the buckets of Latency, in seconds.
var LatencyBounds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Latency is a histogram of the times from requests to answers.
type Latency struct {
	Counts [len(LatencyBounds) + 1]uint64 // in each bucket alone; the last is above all bounds
	Sum    float64                        // seconds
}

// Count returns the number of answers.
func (l *Latency) Count() (n uint64) {
	for _, c := range l.Counts {
		n += c
	}
	return n
}

func (l *Latency) observe(took time.Duration) {
	i, s := 0, took.Seconds()
	for i < len(LatencyBounds) && s > LatencyBounds[i] {
		i++
	}
	l.Counts[i]++
	l.Sum += s
}

// quantile returns a bound in milliseconds that a share of the answers did not exceed; 0 without answers.
func (l *Latency) quantile(share float64) float64 {
	want, seen := share*float64(l.Count()), 0.0
	for i, n := range l.Counts {
		if seen += float64(n); n > 0 && seen >= want {
			return LatencyBounds[min(i, len(LatencyBounds)-1)] * 1000
		}
	}
	return 0
}

// States of a circuit.
const (
	CircuitClosed   = "closed"
	CircuitOpen     = "open"
	CircuitHalfOpen = "half-open"
)

// circuitPolicy says when requests to a server that does not answer are refused.
type circuitPolicy struct {
	failures   int           // in a row; 0 means 5
	first, max time.Duration // pauses before the next try, doubled from one to the other; 0 means 1 s and 1 min
}

// health counts the requests to the server of a package, and refuses them while it does not answer. It is safe for
// concurrent use.
type health struct {
	policy circuitPolicy

	mu       sync.Mutex
	running  int
	calls    uint64
	restarts uint64
	errors   map[string]uint64
	latency  Latency
	failures int // in a row
	pause    time.Duration
	until    time.Time // when the open circuit lets a call try; zero while it is closed
	trying   bool
	shown    time.Time // when the counts were published
	changed  bool      // since then
}

// snapshot returns what is shown.
func (h *health) snapshot() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Health{
		Circuit: CircuitClosed, Calls: h.calls, Running: h.running, Restarts: h.restarts, Errors: maps.Clone(h.errors),
		P50: h.latency.quantile(.5), P99: h.latency.quantile(.99), Latency: h.latency,
	}
	if !h.until.IsZero() {
		s.Circuit, s.Retry = CircuitOpen, new(h.until.UTC())
	}
	if h.trying {
		s.Circuit, s.Retry = CircuitHalfOpen, nil
	}
	return s
}

// due reports whether counts have changed that were not published for some time.
func (h *health) due(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.changed || now.Sub(h.shown) < showInterval {
		return false
	}
	h.shown, h.changed = now, false
	return true
}

const showInterval = 10 * time.Second // of counts that change with every call

// reset closes the circuit.
func (h *health) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.pause, h.until, h.trying = 0, 0, time.Time{}, false
}

func (h *health) countRestart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.restarts++
	h.changed = true
}

// countError counts a request without a result; h.mu is held.
func (h *health) countError(kind string) {
	if h.errors == nil {
		h.errors = map[string]uint64{}
	}
	h.errors[kind]++
}

// admit lets a request to the server begin, and returns whether it is the one that tries an open circuit. shares
// counts the requests of all packages; of most requests each package may have as many as it leaves free.
func (h *health) admit(id string, shares *atomic.Int64, most int) (try bool, err error) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	h.changed = true
	switch free := int64(most) - shares.Load(); {
	case h.trying:
		err = h.refuse(id, "is being tried again by another call", max(h.pause, time.Second))
	case now.Before(h.until):
		err = h.refuse(id, "is not called", h.until.Sub(now))
	case int64(h.running) >= free:
		h.countError(errRefused)
		err = &tool.Refusal{
			Code: tool.CodeBusy,
			Message: fmt.Sprintf("package %s has %d calls that have not ended, which is its share; nothing was run", id,
				h.running),
			Next: "Try again in a moment.",
		}
	}
	if err != nil {
		return false, err
	}
	try = !h.until.IsZero()
	h.trying = try
	h.running++
	shares.Add(1)
	return try, nil
}

// refuse returns the refusal of an open circuit; h.mu is held.
func (h *health) refuse(id, what string, after time.Duration) error {
	h.countError(errRefused)
	return &tool.Refusal{
		Code: tool.CodeUnavailable,
		Message: fmt.Sprintf("package %s did not answer %d calls in a row and %s; nothing was run", id, h.failures,
			what),
		Next: fmt.Sprintf("It is tried again in %d s, or when an administrator restarts it.", seconds(after)),
	}
}

func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// finish ends a request that admit let begin, with the kind of its error, "" for none. It reports whether the
// circuit has opened or closed. took is 0 if it is not the server that took the time.
func (h *health) finish(try bool, kind string, took time.Duration, shares *atomic.Int64) (turned bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	shares.Add(-1)
	if kind != "" {
		h.countError(kind)
	}
	was := h.until
	if try {
		h.trying = false
	}
	switch kind {
	case "", errRPC:
		if took > 0 {
			h.latency.observe(took)
		}
		h.failures, h.pause, h.until = 0, 0, time.Time{}
	case errTimeout, errLost:
		if h.failures++; try || h.failures >= h.policy.failures && was.IsZero() {
			h.pause = min(max(2*h.pause, h.policy.first), h.policy.max)
			h.until = time.Now().Add(h.pause)
		}
	}
	return was.IsZero() != h.until.IsZero()
}

// errorKind returns the kind of the error of a request to a server.
func errorKind(ctx context.Context, err error) string {
	if err == nil {
		return ""
	}
	if _, ok := errors.AsType[*tool.WireError](err); ok {
		return errRPC
	}
	if ctx.Err() != nil {
		if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
			return errTimeout
		}
		return errCancelled
	}
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == tool.CodeTooLarge {
		return errRPC // it has answered
	}
	if _, login := loginRequired(err); login {
		return errRefused // it has answered, too
	}
	if _, ok := errors.AsType[*lostError](err); ok {
		return errLost
	}
	return errUnavailable
}

// lostError is the refusal of a request that a server did not answer because it ended.
type lostError struct{ *tool.Refusal }

func (e *lostError) Unwrap() error { return e.Refusal }

// admit lets a request to the server of a package begin; end ends it with its error, and whether the server has
// asked its caller meanwhile, which takes as long as a person does.
func (p *managedPackage) admit(ctx context.Context) (end func(err error, asked bool), err error) {
	h := p.manager
	p.mu.Lock()
	halted := p.rec.Stopped || p.shared.failures >= maxFailures
	p.mu.Unlock()
	if halted {
		p.health.reset() // it is refused with a reason that says more
	}
	try, err := p.health.admit(p.id, &h.relaying, h.opts.Calls)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	return func(err error, asked bool) {
		kind, took := errorKind(ctx, err), time.Since(begun)
		if asked {
			took = 0
		}
		if asked && kind == errTimeout {
			kind = errCancelled
		}
		if p.health.finish(try, kind, took, &h.relaying) {
			p.publishState()
		}
	}, nil
}

// PackageHealth is the health of one package.
type PackageHealth struct {
	ID     string
	Status string // of its server; see Public
	Health Health
}

// Health returns the health of all packages, sorted by id.
func (h *Manager) Health() (all []PackageHealth) {
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		status := p.shared.status()
		p.mu.Unlock()
		all = append(all, PackageHealth{p.id, status, p.health.snapshot()})
	}
	return all
}
