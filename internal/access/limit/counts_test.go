package limit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counting are several hosts that have the calls of one context in common.
type counting struct {
	t      *testing.T
	all    []*Limits
	groups []*Group
	live   []bool
	asked  int // requests of one host to another

	mu               sync.Mutex
	running, highest int
}

func newCounting(t *testing.T, hosts, calls int) *counting {
	c := &counting{t: t}
	for i := range hosts {
		l, g := New(Options{}), NewGroup(fmt.Sprint("h", i))
		l.Join(g)
		l.SetContexts(map[string]Context{"work": {Calls: calls}})
		c.all, c.groups, c.live = append(c.all, l), append(c.groups, g), append(c.live, true)
	}
	c.hear()
	return c
}

// hear tells each host which others live.
func (c *counting) hear() {
	hosts, place := 0, map[int]int{}
	for i, l := range c.live {
		if l {
			place[i] = hosts
			hosts++
		}
	}
	for i, at := range place {
		c.groups[i].SetHosts(hosts, at)
	}
}

// run exchanges loans for some time, as nodes do.
func (c *counting) run(span time.Duration) {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for i, g := range c.groups {
			if !c.live[i] {
				continue
			}
			if time.Now().UnixMilli()%500 < 10 {
				g.Recount()
			}
			select {
			case w := <-g.Wants():
				asked := time.Now()
				for j, other := range c.groups {
					if i != j && c.live[j] {
						c.asked++
						g.BorrowSlots(w, fmt.Sprint("h", j), other.Lend(w, fmt.Sprint("h", i)), asked)
					}
				}
			default:
			}
		}
	}
}

// reset forgets how many calls ran at once, and those that run on a host that has died.
func (c *counting) reset(running int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.highest = running, running
}

func (c *counting) counts() (running, highest int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running, c.highest
}

// call makes a call at a host that runs for some time.
func (c *counting) call(wg *sync.WaitGroup, host int, runs time.Duration) {
	wg.Go(func() {
		p, err := c.all[host].Enter(context.Background(), Who{Context: "work", Tool: "t"}, time.Hour)
		if err != nil {
			c.t.Error(err)
			return
		}
		c.mu.Lock()
		c.running++
		c.highest = max(c.highest, c.running)
		c.mu.Unlock()
		time.Sleep(runs)
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
		p.Leave()
	})
}

// The calls of a context that run at once are those of all hosts together: never more, on one host as many as there
// are, and none is asked about while the host has a slot free.
func TestCallsOfAContextOnAllHosts(t *testing.T) {
	for _, calls := range []int{1, 2, 7} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCounting(t, 3, calls)
				var wg sync.WaitGroup
				for range calls / 3 { // the share of each
					for host := range 3 {
						c.call(&wg, host, time.Second)
					}
				}
				c.run(2 * time.Second)
				wg.Wait()
				if c.asked > 0 {
					t.Errorf("%d requests although each host had slots free", c.asked)
				}
				c.reset(0)
				for range 3 * calls {
					c.call(&wg, 1, 4*time.Second)
				}
				c.run(20 * time.Second) // longer than loans
				wg.Wait()
				if _, n := c.counts(); n != calls {
					t.Errorf("one host ran %d calls at once, want %d", n, calls)
				}
				c.run(3 * time.Second)
				c.reset(0)
				for range 200 {
					c.call(&wg, rand.IntN(3), time.Duration(rand.IntN(400))*time.Millisecond)
					c.run(20 * time.Millisecond)
				}
				c.run(2 * time.Minute)
				wg.Wait()
				if _, n := c.counts(); n != calls {
					t.Errorf("all hosts ran %d calls at once, want %d", n, calls)
				}
			})
		})
	}
}

// The slots of a host that dies are those of the others: those that it had, those that it had borrowed, and those that
// it had lent.
func TestSlotsReturnFromAHostThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounting(t, 3, 6)
		var dying, wg sync.WaitGroup
		for range 6 { // it has all
			c.call(&dying, 0, time.Hour)
		}
		c.run(time.Second)
		if n, _ := c.counts(); n != 6 {
			t.Fatalf("%d calls run, want 6", n)
		}
		c.live[0] = false
		c.reset(0)
		c.hear()
		for range 10 {
			c.call(&wg, 1, time.Minute)
			c.call(&wg, 2, time.Minute)
		}
		c.run(3 * time.Second)
		if n, _ := c.counts(); n != 6 {
			t.Errorf("after the death of the host %d calls run, want 6", n)
		}
		c.run(5 * time.Minute)
		wg.Wait()
		if _, n := c.counts(); n != 6 {
			t.Errorf("%d calls ran at once, want 6", n)
		}
		dying.Wait()
	})
}
