package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/state"
	"gatehouse/internal/state/statelogtest"
)

// A patch leads from one value to the other, is empty if and only if they are
// equal, survives being written and read, and leaves the first value alone.
func TestDiffLeadsFromOneToTheOther(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var v any
	for i := range 20_000 {
		w := statelogtest.Random(rnd, v)
		before, _ := json.Marshal(v)
		p := state.Diff(v, w)
		b, err := p.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		q, err := state.DecodePatch(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		got, err := state.Apply(v, q)
		if err != nil || !reflect.DeepEqual(got, w) || (len(p) == 0) != reflect.DeepEqual(v, w) {
			t.Fatalf("step %d: %v by %s is %v, %v; want %v", i, v, b, got, err, w)
		}
		if whole, _ := json.Marshal(w); len(b) > len(whole)+60 {
			t.Fatalf("step %d: %s is longer than the whole, %s", i, b, whole)
		}
		if after, _ := json.Marshal(v); string(after) != string(before) {
			t.Fatalf("step %d: %s became %s", i, before, after)
		}
		v = w
	}
}

func TestArraysThatMoveOn(t *testing.T) {
	var a, b []any
	for i := range 50 {
		a, b = append(a, fmt.Sprint("a rather long text ", i)), append(b, fmt.Sprint("a rather long text ", i+2))
	}
	if p := state.Diff(a, b); len(p) != 4 {
		t.Fatalf("%d operations", len(p))
	}
}

// One patch for many changes does what they do one after the other, in every
// part of the tree.
func TestMergedPatchesAreTheSumOfTheSingleOnes(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			tr := state.New(state.Options{})
			m := attach[any](t, tr, "/public/m", state.Live)
			var model any
			at := []string{"", "/public", "/public/m", "/public/m/k1", "/public/m/k2/0", "/public/m/~01"}[rnd.IntN(6)]
			s, now := subscribe(t, tr, at, "")
			v, single := now.Value, now.Value
			for range 60 {
				for range rnd.IntN(5) {
					model = statelogtest.Random(rnd, model)
					setTo(t, m, model)
					is := tr.Read(pointer(t, at)).Value
					one, err := state.Apply(single, state.Diff(single, is))
					if err != nil {
						t.Fatal(err)
					}
					single = one
				}
				s.Flush(true)
				u := next(t, s)
				var err error
				if v, err = state.Apply(v, u.Patch); err != nil || !reflect.DeepEqual(v, single) {
					t.Fatalf("seed %d: at %q %v, want %v; %v", seed, at, v, single, err)
				}
			}
		})
	}
}

// reader is a client of the tree: it folds patches, reads again when it is
// told to, goes away and comes back, and is at times too slow.
type reader struct {
	at       state.Pointer
	rnd      *rand.Rand
	value    any
	revision state.Revision
	again    int // how often it had to read again
	patches  int
}

func (r *reader) read(tr *state.Tree) {
	v := tr.Read(r.at)
	r.value, r.revision = v.Value, v.Revision
	r.again++
}

func (r *reader) run(ctx context.Context, tr *state.Tree) error {
	r.read(tr)
	for ctx.Err() == nil {
		s, _, err := tr.Subscribe(r.at, r.revision)
		if err != nil {
			return err
		}
		for range 1 + r.rnd.IntN(20) {
			if r.rnd.IntN(4) == 0 {
				time.Sleep(time.Duration(r.rnd.IntN(3000)) * time.Millisecond)
			}
			u, err := s.Next(ctx)
			if err != nil {
				break
			}
			if err := r.take(tr, u); err != nil {
				return err
			}
		}
		s.Close()
		time.Sleep(time.Duration(r.rnd.IntN(2000)) * time.Millisecond)
	}
	return nil
}

// take is what docs/state.md tells clients to do.
func (r *reader) take(tr *state.Tree, u state.Update) error {
	switch {
	case u.Revision == r.revision:
	case u.Again || u.From != r.revision:
		r.read(tr)
	default:
		v, err := state.Apply(r.value, u.Patch)
		if err != nil {
			return err
		}
		r.value, r.revision = v, u.Revision
		r.patches++
	}
	return nil
}

// Whatever the delays, overflows and reconnections, what a subscriber has made
// of its patches is in the end what the tree is.
func TestFoldedPatchesAreTheTree(t *testing.T) {
	seeds := uint64(8)
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		seeds = 200
	}
	again, patches := 0, 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 8))
			tr := state.New(state.Options{Pending: 1500})
			a, b := attach[any](t, tr, "/public/a", state.Live), attach[any](t, tr, "/public/b/c", state.Durable)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var readers []*reader
			ended := make(chan error)
			for i, at := range []string{"", "/public", "/public/a", "/public/b/c", "/public/a/k1", "/public/b/c/k2",
				"/public/a/~1"} {
				r := &reader{at: pointer(t, at), rnd: rand.New(rand.NewPCG(seed, uint64(i+100)))}
				readers = append(readers, r)
				go func() { ended <- r.run(ctx, tr) }()
			}
			var va, vb any
			for range 300 {
				if rnd.IntN(2) == 0 {
					va = statelogtest.Random(rnd, va)
					setTo(t, a, va)
				} else {
					vb = statelogtest.Random(rnd, vb)
					setTo(t, b, vb)
				}
				time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
			}
			time.Sleep(time.Hour) // all followers have had the time to receive everything
			cancel()
			for range readers {
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
			for _, r := range readers {
				if want := tr.Read(r.at); !reflect.DeepEqual(r.value, want.Value) {
					t.Errorf(
						"seed %d, %q: %v at %s, want %v at %s",
						seed,
						r.at,
						r.value,
						r.revision,
						want.Value,
						want.Revision,
					)
				}
				again, patches = again+r.again, patches+r.patches
			}
		})
	}
	t.Logf("%d patches folded, %d times read again", patches, again)
	if patches < 100*int(seeds) || again < 10*int(seeds) {
		t.Error("the test does not test both ways")
	}
}
