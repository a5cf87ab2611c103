package load

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Figures are what a run found.
type Figures struct {
	Calls    int
	Elapsed  time.Duration
	P50, P99 time.Duration
}

// Rate is in calls per second.
func (f Figures) Rate() float64 { return float64(f.Calls) / f.Elapsed.Seconds() }

// An exchange sends one request and looks at its answer.
type exchange func(*Request) error

// HTTP is how a client exchanges.
func (c *Client) HTTP(r *Request) error {
	a, err := c.Do(r.raw)
	if err != nil {
		return err
	}
	return r.Check(a.Status, a.Body)
}

// Run has every connection call until the time is up or the number of calls
// is reached, whichever is given. Every answer is checked; the first error
// ends the run. With sessions, the calls go round them.
func Run(conns []*Client, r *Request, sessions []string, d time.Duration, calls int) (Figures, error) {
	var all []exchange
	for _, c := range conns {
		all = append(all, c.HTTP)
	}
	return run(all, r, sessions, d, calls)
}

func run(all []exchange, r *Request, sessions []string, d time.Duration, calls int) (Figures, error) {
	begin := time.Now()
	took := make([][]time.Duration, len(all))
	errs := make([]error, len(all))
	var workers sync.WaitGroup
	for i, x := range all {
		quota := calls / len(all)
		workers.Go(func() {
			took[i], errs[i] = one(x, r.Clone(i*10_000_000), sessions, i, begin.Add(d), quota)
		})
	}
	workers.Wait()
	f := Figures{Elapsed: time.Since(begin)}
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	every := slices.Concat(took...)
	slices.Sort(every)
	f.Calls = len(every)
	if f.Calls == 0 {
		return f, errors.New("no call was answered in time")
	}
	f.P50, f.P99 = every[f.Calls/2], every[f.Calls*99/100]
	return f, nil
}

func one(x exchange, r *Request, sessions []string, i int, end time.Time, quota int) (took []time.Duration, err error) {
	took = make([]time.Duration, 0, 1<<16)
	last := time.Now()
	for n := 0; quota == 0 && last.Before(end) || n < quota; n++ {
		session := ""
		if len(sessions) > 0 {
			session = sessions[(n*17+i*997)%len(sessions)]
		}
		r.Next(session)
		if err := x(r); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	return took, nil
}
