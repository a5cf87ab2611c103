package state_test

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/state"
)

// book is what a mount on demand is filled from.
type book struct {
	mu    sync.Mutex
	all   map[string]int
	fills int
}

func (b *book) fill() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fills++
	return maps.Clone(b.all)
}

func onDemand(t *testing.T, tr *state.Tree, b *book) (*state.Mount[map[string]int], *state.Demand[int]) {
	m := attach[map[string]int](t, tr, "/public/m", state.Live)
	setTo(t, m, map[string]int{})
	return m, state.OnDemand(m, time.Minute, b.fill)
}

func TestAMountOnDemandIsFilledByWhoeverLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		b := &book{all: map[string]int{"a": 1}}
		m, d := onDemand(t, tr, b)
		attach[int](t, tr, "/public/other", state.Live)
		read(t, tr, "/public/other")
		if d.Wanted() || b.fills != 0 {
			t.Fatal("it is filled for one who looks elsewhere")
		}
		for _, at := range []string{"/public", "/public/m", "/public/m/a"} {
			if v := tr.Read(pointer(t, at)); !v.Found || !d.Wanted() {
				t.Errorf("%s: %v", at, v)
			}
		}
		if b.fills != 1 {
			t.Errorf("filled %d times", b.fills)
		}
		if err := state.Put(t.Context(), m, "b", 2); err != nil {
			t.Fatal(err)
		}
		if got := read(t, tr, "/public/m"); got != `{"a":1,"b":2}` {
			t.Errorf("it reads %s", got)
		}
		time.Sleep(3 * time.Minute)
		if v, _, err := m.Get(); d.Wanted() || len(v) != 0 || err != nil {
			t.Errorf("nobody has looked for long, and it still holds %v, %v", v, err)
		}
		if got := read(t, tr, "/public/m"); got != `{"a":1}` || b.fills != 2 {
			t.Errorf("it reads %s after %d fills", got, b.fills)
		}
		time.Sleep(3 * time.Minute)
	})
}

func TestAMountThatIsFollowedStaysFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := state.New(state.Options{})
		m, d := onDemand(t, tr, &book{all: map[string]int{"a": 1}})
		s, now, err := tr.Subscribe(pointer(t, "/public/m"), "")
		if err != nil || fmt.Sprint(now.Value) != "map[a:1]" {
			t.Fatalf("it begins with %v, %v", now.Value, err)
		}
		time.Sleep(10 * time.Minute)
		if !d.Wanted() {
			t.Fatal("it was emptied under the eyes of a subscriber")
		}
		if err := state.Put(t.Context(), m, "b", 2); err != nil {
			t.Fatal(err)
		}
		if got := patchText(t, next(t, s)); got != `[{"op":"add","path":"/b","value":2}]` {
			t.Errorf("the subscriber is told of %s", got)
		}
		s.Close()
		time.Sleep(3 * time.Minute)
		if d.Wanted() {
			t.Error("the last subscriber has gone, and it is still filled")
		}
	})
}

// Whatever is changed while a client starts reading is there in the end.
func TestNothingIsLostWhenALookBegins(t *testing.T) {
	for i := range 200 {
		tr := state.New(state.Options{})
		b := &book{all: map[string]int{}}
		m, d := onDemand(t, tr, b)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 100 {
				name := fmt.Sprint(i)
				b.mu.Lock()
				b.all[name] = i // it is so, and then it is told
				b.mu.Unlock()
				if d.Wanted() {
					if err := state.Put(t.Context(), m, name, i); err != nil {
						t.Error(err)
					}
				}
			}
		})
		wg.Go(func() {
			for range i % 20 { // somewhere among the changes
				runtime.Gosched()
			}
			tr.Read(pointer(t, "/public"))
		})
		wg.Wait()
		if v, _, err := m.Get(); err != nil || len(v) != 100 {
			t.Fatalf("%d of 100 are there, %v", len(v), err)
		}
	}
}
