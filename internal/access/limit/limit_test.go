package limit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestABurstAndThenTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Options{Rate: 50, Burst: 100})
		for i := range 100 {
			if ok, _ := r.Allow("alice"); !ok {
				t.Fatalf("request %d of the burst was refused", i+1)
			}
		}
		ok, retry := r.Allow("alice")
		if ok || retry != 20*time.Millisecond {
			t.Errorf("got %t, %v after the burst, want a refusal for 20ms", ok, retry)
		}
		if ok, _ := r.Allow("bob"); !ok {
			t.Error("bob pays for alice")
		}
		time.Sleep(retry)
		if ok, _ := r.Allow("alice"); !ok {
			t.Error("refused when it was said to be allowed")
		}
		allowed := 0
		for range 10_000 {
			if ok, _ := r.Allow("alice"); ok {
				allowed++
			}
			time.Sleep(time.Millisecond)
		}
		if allowed < 499 || allowed > 501 {
			t.Errorf("%d requests in 10 s, want 50 a second", allowed)
		}
		if s := r.Stats(); s.Keys != 2 || s.Allowed != uint64(allowed)+102 || s.TooSoon != uint64(10_000-allowed)+1 {
			t.Errorf("got %+v", s)
		}
	})
}

// A request that is refused for one key does not count against the other keys.
func TestAllKeysOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Options{Rate: 1, Burst: 2})
		r.Allow("alice", "s1")
		r.Allow("alice", "s1")
		for range 5 {
			if ok, _ := r.Allow("alice", "s2"); ok {
				t.Fatal("a new session is a way around the principal's rate")
			}
		}
		for i := range 2 {
			if ok, _ := r.Allow("", "s2"); !ok {
				t.Errorf("request %d: refused ones were counted against s2", i)
			}
		}
	})
}

func TestNoRateIsNoLimit(t *testing.T) {
	var none *Rates
	for _, r := range []*Rates{none, NewRates(Options{})} {
		for range 1000 {
			if ok, _ := r.Allow("a"); !ok || r.Wait(t.Context(), "a") != nil {
				t.Fatal("refused without a rate")
			}
		}
	}
}

func TestRememberedKeysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Options{Rate: 1, Burst: 1, Keys: 1000})
		r.Allow("flood")
		for i := range 50_000 {
			r.Allow(fmt.Sprint(i))
			if ok, _ := r.Allow("flood"); ok {
				t.Fatal("a key that keeps coming was forgotten")
			}
		}
		if n := r.Stats().Keys; n != 1000 {
			t.Errorf("%d keys are remembered, want 1000", n)
		}
	})
}

// A client that sends as fast as it is answered is slowed down to its rate; a client that floods over
// many connections cannot make the host answer refusals at full speed.
func TestHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ conns, served, refused int }{{40, 600, 0}, {64, 600, 200}} {
			r := NewRates(Options{Rate: 50, Burst: 100})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			var all sync.WaitGroup
			var mu sync.Mutex
			served, refused := 0, 0
			for range c.conns {
				all.Go(func() {
					for ctx.Err() == nil {
						err := r.Wait(ctx, "flood")
						mu.Lock()
						if err == nil {
							served++
						} else if _, ok := errors.AsType[*Busy](err); ok {
							refused++
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			cancel()
			if served < c.served-10 || served > c.served+1 || refused > c.refused {
				t.Errorf(
					"%d connections: %d served and %d refused in 10 s, want %d and at most %d",
					c.conns,
					served,
					refused,
					c.served,
					c.refused,
				)
			}
		}
	})
}

func TestHoldingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Options{Rate: 50, Burst: 100})
		for range 1000 {
			go r.Wait(t.Context(), "flood")
		}
		synctest.Wait()
		began := time.Now()
		busy, ok := errors.AsType[*Busy](r.Wait(t.Context(), "flood"))
		if !ok || busy.Seconds() < 1 || time.Since(began) > 0 {
			t.Errorf("got %v after %v, want a refusal at once where there is no space to hold", busy, time.Since(began))
		}
		if s := r.Stats(); s.Held != mostHeldKey {
			t.Errorf("%d are held, want %d", s.Held, mostHeldKey)
		}
		cause := errors.New("client closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		r.Allow("other")
		for range 100 {
			r.Allow("other")
		}
		if err := r.Wait(ctx, "other"); err != cause {
			t.Errorf("got %v, want the cause", err)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Held != 0 || len(r.held) != 0 {
			t.Errorf("%d are still held", s.Held)
		}
	})
}

func TestTheRateCanChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(Options{})
		r.Set(1, 1)
		r.Allow("a")
		if ok, _ := r.Allow("a"); ok {
			t.Error("the new rate does not hold")
		}
		r.Set(0, 0)
		if ok, _ := r.Allow("a"); !ok {
			t.Error("the old rate still holds")
		}
	})
}

// work enters, runs for a while and leaves.
func work(q *Queue, who Who, took time.Duration) error {
	pass, err := q.Enter(context.Background(), who, time.Minute)
	if err != nil {
		return err
	}
	time.Sleep(took)
	pass.Leave()
	return nil
}

// However many calls one session sends, a call of another session waits for one of them at most.
//
//redteam:attack No principal takes the host from the others: one principal asks without end
func TestAFloodDoesNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 4, Session: 64, Waiting: 10_000})
		for range 500 {
			go work(q, Who{Holder: Holder{Principal: "flood"}, Session: "s1", Tool: "t"}, 10*time.Millisecond)
		}
		synctest.Wait()
		for i := range 50 {
			began := time.Now()
			if err := work(q, Who{Holder: Holder{Principal: "quiet"}, Session: "s2", Tool: "t"},
				10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("call %d of the quiet session took %v beside a flood, alone it takes 10ms", i, took)
			}
		}
		time.Sleep(time.Minute)
		if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || s.Entered != 550 || s.Queued < 496 ||
			len(q.sessions) != 0 ||
			len(q.queuedBy) != 0 {
			t.Errorf("something is left: %+v, %d sessions", s, len(q.sessions))
		}
	})
}

// Turns alternate between principals first, so that many sessions do not get a principal more of them.
func TestTurnsGoToPrincipalsThenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 1, Waiting: 100}) // large enough, because this test is about turns
		var mu sync.Mutex
		done := map[string]int{}
		stop := make(chan struct{})
		run := func(who Who) {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := work(q, who, time.Millisecond); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				done[who.Principal]++
				done[who.Principal+who.Session]++
				mu.Unlock()
			}
		}
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() { run(Who{Holder: Holder{Principal: "many"}, Session: fmt.Sprint(i % 10), Tool: "t"}) })
		}
		all.Go(func() { run(Who{Holder: Holder{Principal: "one"}, Session: "a", Tool: "t"}) })
		all.Go(func() { run(Who{Holder: Holder{Principal: "one"}, Session: "a", Tool: "t"}) })
		time.Sleep(time.Second)
		close(stop)
		all.Wait()
		if d := done["many"] - done["one"]; d < -35 || d > 35 {
			t.Errorf("got %d and %d calls, want as many for each principal", done["many"], done["one"])
		}
		if a, b := done["many0"], done["many9"]; a < b-3 || a > b+3 {
			t.Errorf("got %d and %d calls, want as many for each session", a, b)
		}
	})
}

func TestSessionAndToolHaveTheirOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 100, Session: 3, Tool: 5})
		for range 10 {
			go work(q, Who{Holder: Holder{Principal: "a"}, Session: "s1", Tool: "slow"}, time.Second)
			go work(q, Who{Holder: Holder{Principal: "b"}, Session: "s2", Tool: "slow"}, time.Second)
			go work(q, Who{Holder: Holder{Principal: "c"}, Session: "s3", Tool: "other"}, time.Second)
			go work(q, Who{Holder: Holder{Principal: "d"}, Session: "", Tool: "third"}, time.Second)
		}
		synctest.Wait()
		if s := q.Stats(); s.Running != 4+3+3 || s.Waiting != 40-10 {
			t.Errorf(
				"%d run and %d wait, want 10 and 30: two of each principal of the slow tool, 3 of the session, "+
					"3 of the third tool",
				s.Running,
				s.Waiting,
			)
		}
		began := time.Now()
		if work(q, Who{Holder: Holder{Principal: "e"}, Session: "s5", Tool: "quick"}, 0); time.Since(began) > 0 {
			t.Error("a call waits although its session, tool and host are free")
		}
		time.Sleep(time.Minute)
	})
}

func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 1})
		pass, _ := q.Enter(t.Context(), Who{Holder: Holder{Principal: "a"}}, time.Second)
		var busy *Busy
		if _, err := q.Enter(t.Context(), Who{Holder: Holder{Principal: "a"}}, time.Second); !errors.As(err, &busy) ||
			busy.Seconds() < 1 {
			t.Errorf("got %v, want a Busy", err)
		}
		cause := errors.New("client closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); cancel(cause) }()
		if _, err := q.Enter(ctx, Who{Holder: Holder{Principal: "a"}}, time.Minute); err != cause {
			t.Errorf("got %v, want the cause", err)
		}
		pass.Leave()
		if err := work(q, Who{Holder: Holder{Principal: "a"}}, 0); err != nil {
			t.Errorf("the slot is lost: %v", err)
		}
		if s := q.Stats(); s.Late != 1 || s.Waiting != 0 || s.Running != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A nested call never waits, and acquires no slot that is not free.
func TestNestedCallsNeverWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 2})
		first, _ := q.Enter(t.Context(), Who{Holder: Holder{Principal: "a"}}, time.Second)
		inner := q.Nested()
		innermost := q.Nested()
		if q.Running() != 3 {
			t.Errorf("%d run, want 3", q.Running())
		}
		waited := make(chan error)
		go func() { waited <- work(q, Who{Holder: Holder{Principal: "b"}}, 0) }()
		synctest.Wait()
		innermost.Leave()
		synctest.Wait()
		if q.Stats().Waiting != 1 {
			t.Error("a call that ran on its parent's slot gave one away")
		}
		inner.Leave()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		first.Leave()
		if q.Running() != 0 {
			t.Errorf("%d run, want none", q.Running())
		}
	})
}

// No principal fills the queue for the others.
func TestTheWaitingSpaceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 1, Session: 1000, Waiting: 100, Line: 30})
		pass, _ := q.Enter(t.Context(), Who{Holder: Holder{Principal: "a"}}, time.Second)
		for i := range 1000 {
			go work(q, Who{Holder: Holder{Principal: "flood"}, Session: "s", Tool: "t"}, time.Millisecond)
			go work(q, Who{Holder: Holder{Principal: "crowd"}, Session: fmt.Sprint(i), Tool: "t"}, time.Millisecond)
			go work(q, Who{Holder: Holder{Principal: "third"}, Session: fmt.Sprint(i), Tool: "t"}, time.Millisecond)
		}
		synctest.Wait()
		if n := q.Stats().Waiting; n < 100 || n > 100+3*few {
			t.Errorf("%d wait, want about 100", n)
		}
		if n := q.queuedBy["crowd"]; n > 50+few {
			t.Errorf("%d calls of one principal wait, want about half at most", n)
		}
		quiet := make(chan error)
		began := time.Now()
		go func() { quiet <- work(q, Who{Holder: Holder{Principal: "quiet"}, Session: "q", Tool: "t"}, 0) }()
		synctest.Wait()
		pass.Leave()
		if err := <-quiet; err != nil || time.Since(began) > 10*time.Millisecond {
			t.Errorf("got %v after %v, want a turn after one call of each", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		if s := q.Stats(); s.Full == 0 || s.Waiting != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// If calls come, wait, give up and leave in any order, no limit is exceeded and no slot is left over.
func TestQueueKeepsItsLimits(t *testing.T) {
	const calls, session, oneTool = 5, 3, 4
	q := NewQueue(Options{Calls: calls, Session: session, Tool: oneTool, Waiting: 200})
	var mu sync.Mutex
	running := map[string]int{}
	change := func(who Who, n int) {
		mu.Lock()
		defer mu.Unlock()
		for key, most := range map[string]int{"": calls, "s" + who.Session: session, "t" + who.Tool: oneTool} {
			if running[key] += n; running[key] > most {
				t.Errorf("%d calls run of %q, at most %d may", running[key], key, most)
			}
		}
	}
	var all sync.WaitGroup
	for i := range 32 {
		who := Who{Holder: Holder{Principal: fmt.Sprint(i % 3)}, Session: fmt.Sprint(i % 7), Tool: fmt.Sprint(i % 2)}
		who.Session += who.Principal
		all.Go(func() {
			for j := range 300 {
				ctx, cancel := context.WithCancel(context.Background())
				if j%5 == i%5 {
					time.AfterFunc(time.Duration(j%3)*50*time.Microsecond, cancel)
				}
				if pass, err := q.Enter(ctx, who, time.Second); err == nil {
					change(who, 1)
					if j%4 == 0 {
						time.Sleep(20 * time.Microsecond)
					}
					change(who, -1)
					pass.Leave()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || q.host.used != 0 || len(q.sessions) != 0 ||
		len(q.queuedBy) != 0 {
		t.Errorf("something is left: %+v, host %d, sessions %d", s, q.host.used, len(q.sessions))
	}
}

func BenchmarkEnter(b *testing.B) {
	q := NewQueue(Options{})
	who := Who{Holder: Holder{Principal: "alice"}, Session: "session", Tool: "tool"}
	b.ReportAllocs()
	for b.Loop() {
		pass, err := q.Enter(b.Context(), who, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		pass.Leave()
	}
}

func BenchmarkAllow(b *testing.B) {
	r := NewRates(Options{Rate: 1e12})
	b.ReportAllocs()
	for b.Loop() {
		r.Allow("alice", "session")
	}
}
