package limit

import (
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest/wallclock"
)

// Setting the clock neither grants requests nor removes any.
//
//redteam:attack No principal takes the host from the others: the clock is set forward to refill a budget, and back to starve its owner
func TestAClockThatJumpsChangesNoRate(t *testing.T) {
	var c wallclock.Clock
	was := clock
	clock = c.Now
	defer func() { clock = was }()
	const span = 200 * time.Millisecond // between two requests
	for _, off := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		c.Set(0)
		r, began := NewRates(Options{Rate: float64(time.Second) / float64(span), Burst: 1}), time.Now()
		if ok, _ := r.Allow("ann"); !ok {
			t.Fatal("the burst is refused")
		}
		c.Set(off)
		ok, retry := r.Allow("ann")
		if late := time.Since(began); ok && late < span || retry > span {
			t.Errorf("the clock %v off: after %v got %v, %v", off, late, ok, retry)
		}
		for !ok && time.Since(began) < time.Minute {
			time.Sleep(span / 10)
			ok, _ = r.Allow("ann")
		}
		if !ok {
			t.Errorf("the clock %v off: a request is refused whose time has come", off)
		}
	}
}
