package limit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// hosts are several hosts that have the rate of each principal in common.
type hosts struct {
	rates  []*Rates
	groups []*Group
}

func newHosts(n int, o Options) *hosts {
	h := &hosts{}
	for range n {
		g, r := NewGroup("test"), NewRates(o)
		g.add("requests", r)
		g.SetPart(1 / float64(n))
		h.groups, h.rates = append(h.groups, g), append(h.rates, r)
	}
	return h
}

// exchange lets each host that wants more ask all others that live.
func (h *hosts) exchange(live ...int) {
	for _, i := range live {
		for more := true; more; {
			select {
			case w := <-h.groups[i].Wants():
				asked := time.Now()
				var sum Loan
				for _, j := range live {
					if i != j {
						l := h.groups[j].Lend(w, fmt.Sprint(i))
						sum.Part, sum.Requests = sum.Part+l.Part, sum.Requests+l.Requests
					}
				}
				h.groups[i].Borrow(w, sum, asked)
			default:
				more = false
			}
		}
	}
}

// flood sends a request to each of the hosts every 5 ms for some time, and returns how many were allowed.
func (h *hosts) flood(span time.Duration, live []int, to ...int) (allowed int) {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, i := range to {
			if ok, _ := h.rates[i].Allow("principal ann", "session "+fmt.Sprint(i)); ok {
				allowed++
			}
		}
		h.exchange(live...)
	}
	return allowed
}

// TestHostsHaveARateInCommon floods one of three hosts, all, another one, and two after one has died: together they allow
// the rate, and at most one request more for each host.
func TestHostsHaveARateInCommon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, burst, span = 60, 120, 20 * time.Second
		h := newHosts(3, Options{Rate: rate, Burst: burst})
		all, total, begun := []int{0, 1, 2}, 0, time.Now()
		within := func(what string, got int, least float64) {
			t.Helper()
			total += got
			if want := rate * span.Seconds() * least; float64(got) < want {
				t.Errorf("%s: %d allowed in %v, expected at least %.0f", what, got, span, want)
			}
			if most := burst + rate*time.Since(begun).Seconds() + 3; float64(total) > most {
				t.Errorf("%s: %d allowed since the beginning, at most %.0f", what, total, most)
			}
		}
		within("one host", h.flood(span, all, 0), 0.9)
		within("all hosts", h.flood(span, all, 0, 1, 2), 0.9)
		within("another host", h.flood(span, all, 1), 0.8) // the first returns its loans after their time
		h.groups[0].SetPart(0.5)
		h.groups[2].SetPart(0.5)
		within("two hosts, after one has died", h.flood(span, []int{0, 2}, 0, 2), 0.9)
		within("one of two", h.flood(span, []int{0, 2}, 2), 0.8)

		// Without answers each host stays within its part.
		h = newHosts(3, Options{Rate: rate, Burst: burst})
		if got := h.flood(span, nil, 0); float64(got) > (burst+rate*span.Seconds())/3+1 {
			t.Errorf("a host that is alone allows %d", got)
		}
	})
}
