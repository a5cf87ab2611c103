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

// in returns a call of a principal in a context.
func in(name, who string) Who {
	return Who{Holder: Holder{Principal: who}, Session: who, Context: name, Tool: "t"}
}

func TestCallsOfOneContextWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		q.SetContexts(map[string]Context{"small": {Calls: 2}})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if err := work(q, in("small", fmt.Sprint(i)), time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if s := q.Stats(); s.Running != 2 || s.Waiting != 8 {
			t.Errorf("%d run and %d wait, want 2 and 8", s.Running, s.Waiting)
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("ten calls of 1s, two at once, took %v", took)
		}
		if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || s.Entered != 10 {
			t.Errorf("something is left: %+v", s)
		}
	})
}

// However full one context is, calls elsewhere are not delayed, also those of principals that wait in
// it, and also if no other call may wait.
func TestAFullContextHoldsUpNobodyElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 8, Waiting: 100})
		q.SetContexts(map[string]Context{"small": {Calls: 1}})
		for i := range 1000 {
			go work(q, in("small", fmt.Sprint(i%3)), time.Second)
		}
		synctest.Wait()
		if s := q.Stats(); s.Running != 1 || s.Waiting < 100 || s.Full == 0 {
			t.Fatalf("got %+v, want one that runs and a full waiting list", s)
		}
		for _, who := range []string{"0", "1", "another"} {
			for range 50 {
				began := time.Now()
				if err := work(q, in("large", who), 0); err != nil || time.Since(began) > 0 {
					t.Fatalf("%s in another context: %v after %v", who, err, time.Since(began))
				}
			}
		}
		time.Sleep(10 * time.Minute)
		if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || len(q.queuedBy) != 0 || len(q.sessions) != 0 {
			t.Errorf("something is left: %+v", s)
		}
	})
}

func TestLimitsOfContextsChangeWhileCallsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		runs := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := q.Running(); n != want {
				t.Errorf("%d calls run, want %d", n, want)
			}
		}
		for i := range 3 { // they arrived before there was a limit, and do not count
			go work(q, in("c", fmt.Sprint(i)), time.Second)
		}
		runs(3)
		q.SetContexts(map[string]Context{"c": {Calls: 1}})
		for i := range 9 {
			go work(q, in("c", fmt.Sprint(i)), time.Hour)
		}
		time.Sleep(2 * time.Second)
		runs(1)
		q.SetContexts(map[string]Context{"c": {Calls: 4}, "d": {Calls: 1}})
		runs(4)
		q.SetContexts(map[string]Context{"c": {Calls: 2}}) // running calls continue
		runs(4)
		q.SetContexts(nil)
		runs(9)
		time.Sleep(2 * time.Hour)
		runs(0)
		q.SetContexts(nil)
		if len(q.contexts) != 0 {
			t.Errorf("%d contexts are kept although their limits were removed", len(q.contexts))
		}
	})
}

func TestTheRateOfOnePrincipalInOneContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		q.SetContexts(map[string]Context{"slow": {Rate: 1, Burst: 3}})
		call := func(who Who) (time.Duration, error) {
			began := time.Now()
			err := work(q, who, 0)
			return time.Since(began), err
		}
		for range 3 {
			if took, err := call(in("slow", "ann")); err != nil || took > 0 {
				t.Fatalf("a call of the burst: %v after %v", err, took)
			}
		}
		for _, free := range []Who{in("slow", "bob"), in("fast", "ann")} {
			if took, err := call(free); err != nil || took > 0 {
				t.Errorf("%+v pays for ann in slow: %v after %v", free, err, took)
			}
		}
		if took, err := call(in("slow", "ann")); err != nil || took != time.Second {
			t.Errorf("the fourth call: %v after %v, want to be held for 1s", err, took)
		}
		go call(in("slow", "ann"))
		synctest.Wait()
		took, err := call(in("slow", "ann"))
		if busy, ok := errors.AsType[*Busy](err); !ok || busy.Why != "too many calls in this context" ||
			busy.Seconds() != 1 ||
			took != time.Second {
			t.Errorf("a call that is 2s too soon: %v after %v, want a refusal after 1s", err, took)
		}
		synctest.Wait()
		if s := q.Stats(); s.Held != 0 || s.Allowed != 6 || s.TooSoon != 1 || s.Keys != 2 {
			t.Errorf("got %+v", s)
		}
		q.SetContexts(map[string]Context{"slow": {Calls: 5, Rate: 1, Burst: 3}})
		if took, _ := call(in("slow", "ann")); took == 0 {
			t.Error("a change of something else filled the bucket")
		}
		before := q.Stats()
		q.SetContexts(nil)
		for range 100 {
			if took, err := call(in("slow", "ann")); err != nil || took > 0 {
				t.Fatalf("without a rate: %v after %v", err, took)
			}
		}
		if s := q.Stats(); s.Allowed != before.Allowed || s.TooSoon != before.TooSoon {
			t.Errorf("counters went from %+v to %+v", before, s)
		}
	})
}

// A call that is delayed for its rate ends with its turn, its refusal or its caller.
func TestAHeldCallEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		q.SetContexts(map[string]Context{"slow": {Rate: 1, Burst: 1}})
		work(q, in("slow", "ann"), 0)
		cause := errors.New("client closed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
		began := time.Now()
		if _, err := q.Enter(ctx, in("slow", "ann"), time.Hour); err != cause ||
			time.Since(began) != 100*time.Millisecond {
			t.Errorf("got %v after %v, want the cause at once", err, time.Since(began))
		}
		for range 10_000 {
			go q.Enter(t.Context(), in("slow", "ann"), time.Hour)
		}
		synctest.Wait()
		if s := q.Stats(); s.Held != mostHeldKey || s.TooSoon < 9000 {
			t.Errorf("got %+v, want no more than %d that are held", s, mostHeldKey)
		}
		time.Sleep(2 * time.Second)
		if s := q.Stats(); s.Held != 0 {
			t.Errorf("%d are still held", s.Held)
		}
	})
}

// If limits change while calls come and go, no slot is lost or left over.
func TestLimitsChangeUnderLoad(t *testing.T) {
	q := NewQueue(Options{Calls: 6, Session: 4, Waiting: 1000})
	stop := make(chan struct{})
	var changing, all sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				q.SetContexts(map[string]Context{fmt.Sprint(i % 3): {Calls: 1 + i%2}, "0": {Calls: 2, Rate: 1e6}})
			}
		}
	})
	for i := range 16 {
		all.Go(func() {
			for j := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if j%5 == i%5 {
					time.AfterFunc(time.Duration(j%3)*50*time.Microsecond, cancel)
				}
				if pass, err := q.Enter(ctx, in(fmt.Sprint(j%3), fmt.Sprint(i%5)), time.Minute); err == nil {
					pass.Leave()
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	close(stop)
	changing.Wait()
	q.SetContexts(nil)
	q.SetContexts(nil)
	if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || q.host.used != 0 || q.unlimited.used != 0 ||
		len(q.contexts) != 0 ||
		len(q.sessions) != 0 ||
		len(q.queuedBy) != 0 {
		t.Errorf(
			"something is left: %+v, host %d, elsewhere %d, contexts %d",
			s,
			q.host.used,
			q.unlimited.used,
			len(q.contexts),
		)
	}
}
