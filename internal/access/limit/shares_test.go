package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/tool"
)

func boss(c tool.Caller) bool { return c.Principal == "boss" }

// takeAll acquires one unit after the other until it is refused.
func takeAll(t *testing.T, s *Shares, principal string) (all []Held) {
	t.Helper()
	for {
		h, err := s.Acquire(&tool.Caller{Principal: principal}, 1)
		if busy, ok := errors.AsType[*Busy](err); ok {
			if busy.Seconds() < 1 {
				t.Errorf("refused with %v", err)
			}
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
}

// However many principals take all they can, one that holds nothing gets some, and
// an administrator does even when nothing is left for the others.
//
//redteam:attack No principal takes the host from the others: principals one after the other take all they can of a counted resource
func TestWhatIsCountedIsDivided(t *testing.T) {
	const total = 1600 // of which 100 are kept
	s := NewShares(Resource{Name: "things", Total: total, Administrator: boss})
	var all []Held
	for i, want := range []int{750, 375, 188, 94, 47} {
		got := takeAll(t, s, fmt.Sprint(i))
		if len(got) < want-1 || len(got) > want+1 {
			t.Errorf("principal %d gets %d, want %d", i, len(got), want)
		}
		all = append(all, got...)
	}
	for i := range 100 {
		all = append(all, takeAll(t, s, fmt.Sprint("late ", i))...)
	}
	if n := len(all); n != total-100 {
		t.Errorf("%d are held, want all but the 100 that are kept", n)
	}
	kept := takeAll(t, s, "boss")
	if len(kept) != 50 {
		t.Errorf("the administrator gets %d, want half of the 100 that are kept", len(kept))
	}
	all = append(all, kept...)
	for i := range all {
		all[i].Release()
		all[i].Release() // which gives nothing back
	}
	if used, full := s.Usage(); used != 0 || full == 0 || len(s.d.of) > mostIdle {
		t.Errorf("%d are in use, %d refusals, %d holders", used, full, len(s.d.of))
	}
}

// Two that hold all they can come to hold equally much, as what they hold changes.
func TestSharesBecomeEqual(t *testing.T) {
	s := NewShares(Resource{Name: "things", Total: 900, Kept: -1})
	held := map[string][]Held{"a": takeAll(t, s, "a"), "b": takeAll(t, s, "b")}
	if len(held["a"]) != 450 || len(held["b"]) != 225 {
		t.Fatalf("%d and %d", len(held["a"]), len(held["b"]))
	}
	for range 20_000 {
		name := []string{"a", "b"}[rand.IntN(2)]
		if h := held[name]; rand.IntN(2) == 0 && len(h) > 0 {
			h[len(h)-1].Release()
			held[name] = h[:len(h)-1]
		} else if h, err := s.Acquire(&tool.Caller{Principal: name}, 1); err == nil {
			held[name] = append(held[name], h)
		}
	}
	held["a"], held["b"] = append(held["a"], takeAll(t, s, "a")...), append(held["b"], takeAll(t, s, "b")...)
	for name, h := range held {
		if len(h) < 200 || len(h) > 450 {
			t.Errorf("%s holds %d of 900", name, len(h))
		}
	}
}

// A caller waits for what others release, for as long as it says, and its own
// departure ends that.
func TestWaitingForAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShares(Resource{Name: "bytes", Total: 100, Kept: -1})
		ann := &tool.Caller{Principal: "ann"}
		first, err := s.Acquire(ann, 50)
		if err != nil {
			t.Fatal(err)
		}
		var busy *Busy
		began := time.Now()
		if _, err := s.AcquireWait(t.Context(), ann, 10, time.Second); !errors.As(err, &busy) ||
			time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		began = time.Now()
		if _, err := s.AcquireWait(t.Context(), ann, 101, time.Second); !errors.As(err, &busy) ||
			time.Since(began) != 0 {
			t.Errorf("more than there is: %v after %v", err, time.Since(began))
		}
		cause := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		if _, err := s.AcquireWait(ctx, ann, 10, time.Minute); !errors.Is(err, cause) {
			t.Errorf("%v, want the cause", err)
		}
		time.AfterFunc(time.Second, func() { first.Shrink(20) })
		began = time.Now()
		second, err := s.AcquireWait(t.Context(), ann, 20, time.Minute)
		if err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		first.Release()
		second.Release()
		if used, _ := s.Usage(); used != 0 {
			t.Errorf("%d are held", used)
		}
	})
}

// Long calls of one principal, of one tool and of several sessions, delay no call of
// another; an administrator has a slot even when several principals hold all.
//
//redteam:attack No principal takes the host from the others: long calls take every slot, of one principal and of many
func TestLongCallsTakeNoSlotFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Calls: 64, Session: 64})
		hold := func(principal string) {
			for i := range 200 {
				who := Who{Holder: Holder{Principal: principal}, Session: fmt.Sprint(i), Tool: "slow"}
				go work(q, who, time.Hour)
			}
			synctest.Wait()
		}
		at := func(h Holder, tool string) {
			t.Helper()
			began := time.Now()
			if err := work(q, Who{Holder: h, Session: "s", Tool: tool}, 0); err != nil || time.Since(began) > 0 {
				t.Errorf("%v calls %s: %v after %v", h, tool, err, time.Since(began))
			}
		}
		hold("a")
		if n := q.Running(); n != 30 {
			t.Errorf("%d calls of one principal run, want half of the 60 that are not kept", n)
		}
		for range 20 {
			at(Holder{Principal: "b"}, "slow")
			at(Holder{Principal: "b"}, "other")
		}
		for i := range 20 {
			hold(fmt.Sprint(i))
		}
		if n := q.Running(); n != 60 {
			t.Errorf("%d calls run, want all but those that are kept", n)
		}
		at(Holder{Principal: "boss", Administrator: true}, "slow")
		time.Sleep(24 * time.Hour)
		if s := q.Stats(); s.Running != 0 || s.Waiting != 0 || q.host.inUse() != 0 {
			t.Errorf("something is left: %+v", s)
		}
	})
}
