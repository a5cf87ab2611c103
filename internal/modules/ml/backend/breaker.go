package backend

import (
	"slices"
	"sync"
	"time"
)

const (
	failuresToRest = 3 // that follow each other
	firstRest      = 5 * time.Second
	longestRest    = 5 * time.Minute
	keptTimes      = 200 // of the last answers, for percentiles
)

// record is what was measured of a server, and whether it is asked now.
type record struct {
	mu       sync.Mutex
	now      func() time.Time
	running  int
	requests int64
	failures int64
	in, out  int64 // tokens
	inARow   int
	rest     time.Duration // the last one
	until    time.Time     // the server is left alone
	trying   bool          // after a rest, one request tries the server
	last     string        // error
	lastAt   time.Time
	took     []time.Duration
	rate     []float64 // tokens a second
	next     int       // index into took and rate
}

// beginRequest reports whether the server may be asked, and counts the request. After a rest, one request goes first.
func (r *record) beginRequest() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inARow >= failuresToRest || !r.until.IsZero() {
		if r.now().Before(r.until) || r.trying {
			return false
		}
		r.trying = true
	}
	r.running++
	r.requests++
	return true
}

// resting returns how long the server will still be left alone.
func (r *record) resting() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, r.until.Sub(r.now()))
}

// endRequest counts the result of a request. counts is false if it says nothing about the server.
func (r *record) endRequest(res Response, err error, counts bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	if r.trying && counts {
		r.trying = false
	}
	f, _ := err.(*Failure)
	switch {
	case !counts:
		r.trying = false
	case err == nil:
		r.inARow, r.rest, r.until = 0, 0, time.Time{}
		r.in, r.out = r.in+int64(res.Usage.In), r.out+int64(res.Usage.Out)
		r.recordRates(res)
	default:
		r.failures++
		r.inARow++
		r.last, r.lastAt = err.Error(), r.now()
		if f != nil {
			r.last = f.Reason
		}
		if r.inARow >= failuresToRest {
			r.rest = min(max(firstRest, 2*r.rest), longestRest)
			r.until = r.now().Add(r.rest)
		}
		if f != nil && f.After > 0 {
			r.until = r.now().Add(max(f.After, r.until.Sub(r.now())))
		}
	}
}

func (r *record) recordRates(res Response) {
	if len(r.took) < keptTimes {
		r.took, r.rate = append(r.took, 0), append(r.rate, 0)
	}
	i := r.next % len(r.took)
	if len(r.took) < keptTimes {
		i = len(r.took) - 1
	}
	r.took[i] = res.Took
	r.rate[i] = float64(res.Usage.Out) / max(res.Took.Seconds(), 1e-6)
	r.next = i + 1
}

// Stats are what was measured of a server.
type Stats struct {
	Running, Waiting   int
	Requests, Failures int64
	In, Out            int64 // tokens
	P50, P95           time.Duration
	Rate               float64 // tokens a second, the median
	Resting            time.Duration
	Error              string // the last one
	ErrorAt            time.Time
}

func (r *record) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{
		Running: r.running, Requests: r.requests, Failures: r.failures, In: r.in, Out: r.out,
		Resting: max(0, r.until.Sub(r.now())), Error: r.last, ErrorAt: r.lastAt,
	}
	if n := len(r.took); n > 0 {
		took, rate := slices.Sorted(slices.Values(r.took)), slices.Sorted(slices.Values(r.rate))
		s.P50, s.P95, s.Rate = took[n/2], took[min(n-1, n*95/100)], rate[n/2]
	}
	return s
}
