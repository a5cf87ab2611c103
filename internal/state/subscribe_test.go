package state_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/state"
)

const window = 500 * time.Millisecond

func subscribe(t testing.TB, tr *state.Tree, at string, from state.Revision) (*state.Sub, state.View) {
	t.Helper()
	s, now, err := tr.Subscribe(pointer(t, at), from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, now
}

func next(t testing.TB, s *state.Sub) state.Update {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// quiet fails when there is something to tell within a while.
func quiet(t testing.TB, s *state.Sub) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*window)
	defer cancel()
	if u, err := s.Next(ctx); err == nil {
		t.Fatalf("told of %s", patchText(t, u))
	}
}

func patchText(t testing.TB, u state.Update) string {
	t.Helper()
	b, err := u.Patch.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWindowIsFixedFromTheFirstChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[map[string]int](t, tr, "/public/m", state.Live)
		setTo(t, m, map[string]int{"n": 0})
		s, now := subscribe(t, tr, "/public/m", "")
		time.Sleep(3 * window) // nothing happens, nothing is told
		began := time.Now()
		go func() {
			for i := range 20 { // a change every 100 ms would keep a sliding window open
				setTo(t, m, map[string]int{"n": i + 1})
				time.Sleep(100 * time.Millisecond)
			}
		}()
		u := next(t, s)
		if took := time.Since(began); took != window {
			t.Fatalf("told after %v", took)
		}
		if got := patchText(t, u); got != `[{"op":"replace","path":"/n","value":6}]` &&
			got != `[{"op":"replace","path":"/n","value":5}]` {
			t.Fatalf("told of %s", got)
		}
		if u.From != now.Revision || u.Revision == u.From {
			t.Fatalf("from %s to %s", u.From, u.Revision)
		}
		v := next(t, s)
		if v.From != u.Revision {
			t.Fatalf("from %s, last was %s", v.From, u.Revision)
		}
		time.Sleep(10 * window)
	})
}

func TestUpdatesAreScopedToThePointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[any](t, tr, "/public/a", state.Live)
		setTo[any](t, m, map[string]any{"b": map[string]any{"c": 1, "d": 2}, "x": 1})
		exact, _ := subscribe(t, tr, "/public/a/b/c", "")
		part, _ := subscribe(t, tr, "/public/a/b", "")
		above, _ := subscribe(t, tr, "/public", "")
		beside, _ := subscribe(t, tr, "/public/a/x", "")
		absent, _ := subscribe(t, tr, "/public/z/y", "")
		change := func(v any, want ...string) {
			t.Helper()
			setTo(t, m, v)
			for i, s := range []*state.Sub{exact, part, above} {
				if got := patchText(t, next(t, s)); got != want[i] {
					t.Errorf("subscriber %d is told of %s, want %s", i, got, want[i])
				}
			}
		}
		change(
			map[string]any{"b": map[string]any{"c": 7, "d": 2}, "x": 1},
			`[{"op":"replace","path":"","value":7}]`,
			`[{"op":"replace","path":"/c","value":7}]`,
			`[{"op":"replace","path":"/a/b/c","value":7}]`,
		)
		change(
			map[string]any{"x": 1}, // an ancestor is removed
			`[{"op":"replace","path":"","value":null}]`,
			`[{"op":"replace","path":"","value":null}]`,
			`[{"op":"remove","path":"/a/b"}]`,
		)
		change(
			map[string]any{"b": map[string]any{"c": 1}, "x": 1}, // and comes back
			`[{"op":"replace","path":"","value":1}]`,
			`[{"op":"replace","path":"","value":{"c":1}}]`,
			`[{"op":"add","path":"/a/b","value":{"c":1}}]`,
		)
		quiet(t, beside)
		quiet(t, absent)
		other := attach[any](t, tr, "/public/z", state.Live)
		setTo[any](t, other, map[string]any{"y": 5})
		if got := patchText(t, next(t, absent)); got != `[{"op":"replace","path":"","value":5}]` {
			t.Errorf("told of %s", got)
		}
	})
}

func TestWhatIsChangedBackIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[int](t, tr, "/public/n", state.Live)
		setTo(t, m, 1)
		s, now := subscribe(t, tr, "/public/n", "")
		setTo(t, m, 2)
		setTo(t, m, 1)
		quiet(t, s)
		setTo(t, m, 3)
		if u := next(t, s); u.From != now.Revision {
			t.Fatalf("from %s, the subscriber knows of %s", u.From, now.Revision)
		}
	})
}

func TestFlushTellsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[int](t, tr, "/public/n", state.Live)
		setTo(t, m, 1)
		s, now := subscribe(t, tr, "/public/n", "")
		began := time.Now()
		s.Flush(true) // nothing has changed: the revision alone
		if u := next(t, s); len(u.Patch) != 0 || u.Again || u.Revision != now.Revision {
			t.Fatalf("told of %+v", u)
		}
		setTo(t, m, 2)
		s.Flush(true)
		if got := patchText(t, next(t, s)); got != `[{"op":"replace","path":"","value":2}]` || time.Since(began) != 0 {
			t.Fatalf("told of %s after %v", got, time.Since(began))
		}
		setTo(t, m, 3) // opens a window of its own: the end of the earlier one does nothing
		time.Sleep(window - 1)
		synctest.Wait()
		if time.Since(began) >= window {
			t.Fatal("waited too long")
		}
		next(t, s)
		if time.Since(began) != window {
			t.Fatalf("told after %v", time.Since(began))
		}
	})
}

// Who does not read gets everything in one patch, or once the word to read
// again, and no other client notices.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{Pending: 4000})
		m := attach[map[string]string](t, tr, "/public/m", state.Live)
		setTo(t, m, map[string]string{"a": "0"})
		slow, _ := subscribe(t, tr, "/public/m", "")
		stuck, _ := subscribe(t, tr, "/public/m", "")
		good, _ := subscribe(t, tr, "/public/m", "")
		for i := range 8 {
			setTo(t, m, map[string]string{"a": fmt.Sprint(i + 1)})
			if u := next(t, good); u.Again || len(u.Patch) != 1 {
				t.Fatalf("the good one is told of %+v", u)
			}
		}
		if u := next(t, slow); u.Again || patchText(t, u) != `[{"op":"replace","path":"/a","value":"8"}]` {
			t.Fatalf("the slow one is told of %+v", u)
		}
		for i := range 100 {
			setTo(t, m, map[string]string{"a": strings.Repeat("x", 100+i)})
			if i%10 == 0 {
				if u := next(t, good); u.Again {
					t.Fatal("the good one suffers")
				}
			}
		}
		u := next(t, stuck)
		if !u.Again || u.Patch != nil {
			t.Fatalf("the stuck one is told of %+v", u)
		}
		quiet(t, stuck) // once
		setTo(t, m, map[string]string{"a": "after"})
		if v := next(t, stuck); v.Again || v.From != u.Revision || len(v.Patch) != 1 {
			t.Fatalf("afterwards it is told of %+v", v)
		}
	})
}

func TestManyNodesMakeOneUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[map[string]int](t, tr, "/public/m", state.Live)
		nodes := map[string]int{}
		for i := range 10_000 {
			nodes[fmt.Sprint("node", i)] = i
		}
		setTo(t, m, nodes)
		s, now := subscribe(t, tr, "/public", "")
		for i := range 10_000 {
			nodes[fmt.Sprint("node", i)] = i + 1
		}
		setTo(t, m, nodes)
		u := next(t, s)
		v, err := state.Apply(now.Value, u.Patch)
		if err != nil || u.Again {
			t.Fatal(u.Again, err)
		}
		got, _ := state.View{Value: v}.JSON()
		if string(got) != read(t, tr, "/public") {
			t.Fatal("the patch does not lead there")
		}
		quiet(t, s)
	})
}

func TestComingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{Pending: 3000})
		m := attach[map[string]string](t, tr, "/public/m", state.Live)
		other := attach[int](t, tr, "/public/other", state.Live)
		setTo(t, m, map[string]string{"a": "0"})
		seen := tr.Read(pointer(t, "/public/m"))
		s, _ := subscribe(t, tr, "/public/m", seen.Revision)
		quiet(t, s) // nothing has happened since
		setTo(t, m, map[string]string{"a": "1"})
		setTo(t, other, 1)
		setTo(t, m, map[string]string{"a": "1", "b": "2"})
		s, _ = subscribe(t, tr, "/public/m", seen.Revision)
		u := next(t, s)
		if u.From != seen.Revision || u.Again {
			t.Fatalf("told of %+v", u)
		}
		v, err := state.Apply(seen.Value, u.Patch)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := (state.View{Value: v}).JSON(); string(got) != read(t, tr, "/public/m") {
			t.Fatalf("brought to %s", got)
		}
		for i := range 50 {
			setTo(t, m, map[string]string{"a": strings.Repeat("x", 100+i)})
		}
		for _, lost := range []state.Revision{seen.Revision, "of-another-life"} {
			s, now := subscribe(t, tr, "/public/m", lost)
			if u := next(t, s); !u.Again || u.Revision != now.Revision {
				t.Fatalf("from %s: told of %+v", lost, u)
			}
			quiet(t, s)
		}
	})
}

func TestClosingFreesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m := attach[int](t, tr, "/public/n", state.Live)
		s, _ := subscribe(t, tr, "/public/n", "")
		kept, _ := subscribe(t, tr, "/public/n", "")
		setTo(t, m, 1) // a window is open
		waiting := make(chan error)
		go func() {
			_, err := s.Next(context.Background())
			waiting <- err
		}()
		synctest.Wait()
		s.Close()
		s.Close()
		if err := <-waiting; !errors.Is(err, state.ErrClosed) {
			t.Fatalf("who waited got %v", err)
		}
		if u := next(t, kept); len(u.Patch) != 1 {
			t.Fatalf("the other is told of %+v", u)
		}
		tr.Close()
		if _, err := kept.Next(t.Context()); !errors.Is(err, state.ErrClosed) {
			t.Fatalf("after the tree: %v", err)
		}
		if _, _, err := tr.Subscribe(nil, ""); !errors.Is(err, state.ErrClosed) {
			t.Fatalf("got %v", err)
		}
		if _, err := m.Set(t.Context(), 2); !errors.Is(err, state.ErrClosed) {
			t.Fatalf("got %v", err)
		}
	})
}

// 10,000 subscriptions come and go and leave nothing.
func TestComingAndGoingLeavesNothing(t *testing.T) {
	tr := state.New(state.Options{Window: time.Millisecond})
	m := attach[map[string]int](t, tr, "/public/m", state.Live)
	setTo(t, m, map[string]int{"a": 0})
	round := func(n int) uint64 {
		for i := range n {
			s, _, err := tr.Subscribe(state.Pointer{"public", "m", fmt.Sprint(i % 100)}, "")
			if err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				if err := state.Put(t.Context(), m, fmt.Sprint(i%100), i); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
		}
		runtime.GC()
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		return mem.HeapAlloc
	}
	round(5000)
	before, half := runtime.NumGoroutine(), round(5000)
	if full := round(5000); float64(full) > 1.05*float64(half)+64<<10 {
		t.Errorf("%d bytes after 10,000, %d after 5,000", full, half)
	}
	// one may be ending
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, before %d", runtime.NumGoroutine(), before)
		}
	}
}

// A thousand subscribers of a hundred places are told of a change soon after
// the window, and one who never reads changes nothing.
func TestThousandSubscribers(t *testing.T) {
	tr := state.New(state.Options{Window: 50 * time.Millisecond})
	m := attach[map[string]int](t, tr, "/public/m", state.Live)
	all := map[string]int{}
	for i := range 100 {
		all[fmt.Sprint(i)] = 0
	}
	setTo(t, m, all)
	type told struct {
		took time.Duration
		err  error
	}
	results := make(chan told, 1000)
	began := make(chan time.Time, 1000)
	for i := range 1000 {
		at := fmt.Sprintf("/public/m/%d", i%100)
		s, _ := subscribe(t, tr, at, "")
		subscribe(t, tr, at, "") // this one is not read
		go func() {
			u, err := s.Next(t.Context())
			if err == nil && (len(u.Patch) != 1 || u.Again) {
				err = fmt.Errorf("told of %+v", u)
			}
			results <- told{time.Since(<-began), err}
		}()
	}
	for k := range all {
		all[k] = 1
	}
	start := time.Now()
	setTo(t, m, all)
	for range 1000 {
		began <- start
	}
	var took []time.Duration
	for range 1000 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		took = append(took, r.took)
	}
	slices.Sort(took)
	t.Logf("told within %v (p99 %v after the window)", took[999], took[989]-50*time.Millisecond)
}
