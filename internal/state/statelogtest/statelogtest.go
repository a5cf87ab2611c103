// Package statelogtest is the suite that every log of the state tree passes.
package statelogtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/state"
)

// patience is how long the suite waits for an event that should happen soon; a passing test does not wait that
// long.
const patience = 30 * time.Second

// Options configures Run.
type Options struct {
	// Make returns a new log that the test cleans up.
	Make func(t *testing.T) state.Log
	// Again closes a log of Make, as the end of a process does, and opens what it has stored; nil for logs that
	// store nothing.
	Again func(t *testing.T, l state.Log) state.Log
	// Changes is a number of changes after which a log drops them and keeps the whole value.
	Changes int
}

// Run checks a log against the contract of state.Log.
func Run(t *testing.T, o Options) {
	for name, f := range map[string]func(*testing.T, Options){
		"revisions count changes":        revisionsCount,
		"what cannot be is refused":      refused,
		"mounts are apart":               apart,
		"who follows hears of the rest":  hears,
		"who comes back is brought on":   comesBack,
		"one of two writers wins":        oneWins,
		"the changes make the value":     folds,
		"what was accepted is there":     stays,
		"following ends with its reason": ends,
	} {
		t.Run(name, func(t *testing.T) { f(t, o) })
	}
}

func set(key string, v any) state.Patch {
	return state.Patch{{Kind: state.Add, Path: state.Pointer{key}, Value: v}}
}

func object() state.Patch {
	return state.Patch{{Kind: state.Replace, Value: map[string]any{}}}
}

func add(t *testing.T, l state.Log, mount string, expected uint64, p state.Patch) {
	t.Helper()
	got, err := l.Append(t.Context(), mount, expected, p)
	if err != nil || got != expected+1 {
		t.Fatalf("append to %s at %d: revision %d, %v", mount, expected, got, err)
	}
}

// catchUp returns the first change for a reader that has the value at a revision.
func catchUp(t *testing.T, l state.Log, mount string, v any, from uint64) (any, uint64) {
	t.Helper()
	for c, err := range l.Follow(t.Context(), mount, from) {
		if err != nil {
			t.Fatal(err)
		}
		return apply(t, v, c.Patch), c.Revision
	}
	t.Fatal("following gave nothing")
	return nil, 0
}

func apply(t *testing.T, v any, p state.Patch) any {
	t.Helper()
	v, err := state.Apply(v, p)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func revisionsCount(t *testing.T, o Options) {
	l := o.Make(t)
	if v, r := catchUp(t, l, "/m", nil, 0); v != nil || r != 0 {
		t.Fatalf("a mount that nobody wrote to is %v at %d", v, r)
	}
	add(t, l, "/m", 0, object())
	add(t, l, "/m", 1, set("a", "x"))
	for _, wrong := range []uint64{0, 1, 3, ^uint64(0)} {
		_, err := l.Append(t.Context(), "/m", wrong, set("b", "y"))
		if c, ok := errors.AsType[*state.Conflict](err); !ok || c.Revision != 2 || c.Mount != "/m" {
			t.Fatalf("append expecting %d at 2: %v", wrong, err)
		}
	}
	if v, r := catchUp(t, l, "/m", nil, 0); r != 2 || !reflect.DeepEqual(v, map[string]any{"a": "x"}) {
		t.Fatalf("%v at %d", v, r)
	}
}

func refused(t *testing.T, o Options) {
	l := o.Make(t)
	if _, err := l.Append(t.Context(), "/m", 0, nil); !errors.Is(err, state.ErrPatch) {
		t.Fatalf("an empty patch: %v", err)
	}
	huge := state.Patch{{Kind: state.Replace, Value: strings.Repeat("x", state.MaxPatch)}}
	if _, err := l.Append(t.Context(), "/m", 0, huge); !errors.Is(err, state.ErrPatch) {
		t.Fatalf("a huge patch: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Append(over, "/m", 0, object()); err == nil {
		t.Fatal("a change was accepted from somebody who had gone")
	}
	if _, r := catchUp(t, l, "/m", nil, 0); r != 0 {
		t.Fatalf("what was refused counts: %d", r)
	}
}

func apart(t *testing.T, o Options) {
	l := o.Make(t)
	add(t, l, "/a", 0, object())
	add(t, l, "/a/b", 0, object())
	add(t, l, "/a", 1, set("n", true))
	if v, r := catchUp(t, l, "/a/b", nil, 0); r != 1 || !reflect.DeepEqual(v, map[string]any{}) {
		t.Fatalf("%v at %d", v, r)
	}
}

func hears(t *testing.T, o Options) {
	l := o.Make(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var writing sync.WaitGroup
	defer writing.Wait() // a change is heard of before its writer is told
	add(t, l, "/m", 0, object())
	var v any
	var revision uint64
	first := true
	for c, err := range l.Follow(ctx, "/m", 0) {
		if err != nil {
			t.Fatal(err)
		}
		v, revision = apply(t, v, c.Patch), c.Revision
		if revision == 20 {
			break
		}
		if first { // from here on another process changes it
			first = false
			writing.Go(func() {
				for i := range uint64(19) {
					if _, err := l.Append(ctx, "/m", i+1, set(fmt.Sprint("k", i), "v")); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	if revision != 20 || len(v.(map[string]any)) != 19 {
		t.Fatalf("heard of %v at %d", v, revision)
	}
}

func comesBack(t *testing.T, o Options) {
	l := o.Make(t)
	add(t, l, "/m", 0, object())
	add(t, l, "/m", 1, set("a", "1"))
	at2, _ := catchUp(t, l, "/m", nil, 0)
	add(t, l, "/m", 2, state.Patch{{Kind: state.Remove, Path: state.Pointer{"a"}}})
	add(t, l, "/m", 3, set("b", "2"))
	want := map[string]any{"b": "2"}
	for _, who := range []struct {
		value any
		from  uint64
	}{{at2, 2}, {want, 4}, {nil, 0}, {"from another life", 900}} {
		if v, r := catchUp(t, l, "/m", who.value, who.from); r != 4 || !reflect.DeepEqual(v, want) {
			t.Errorf("from %d: %v at %d", who.from, v, r)
		}
	}
}

func oneWins(t *testing.T, o Options) {
	l := o.Make(t)
	add(t, l, "/m", 0, object())
	const writers, each = 4, 10
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			at := uint64(1)
			for i := 0; i < each; {
				r, err := l.Append(t.Context(), "/m", at, set(fmt.Sprintf("%d.%d", w, i), "v"))
				if c, late := errors.AsType[*state.Conflict](err); late {
					at = c.Revision
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				at = r
				i++
			}
		})
	}
	all.Wait()
	if v, r := catchUp(t, l, "/m", nil, 0); r != 1+writers*each || len(v.(map[string]any)) != writers*each {
		t.Fatalf("%d members at %d", len(v.(map[string]any)), r)
	}
}

// folds makes more changes than a log keeps, and reads in between from all earlier revisions.
func folds(t *testing.T, o Options) {
	l := o.Make(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	var model, follower any
	var revision, seen uint64
	for range o.Changes {
		next := Random(rnd, model)
		p := state.Diff(model, next)
		if len(p) == 0 {
			continue
		}
		add(t, l, "/m", revision, p)
		model, revision = next, revision+1
		if rnd.IntN(o.Changes/20) == 0 {
			if follower, seen = catchUp(t, l, "/m", follower, seen); seen != revision ||
				!reflect.DeepEqual(follower, model) {
				t.Fatalf("at %d: %v at %d, want %v", revision, follower, seen, model)
			}
		}
	}
	if v, r := catchUp(t, l, "/m", nil, 0); r != revision || !reflect.DeepEqual(v, model) {
		t.Fatalf("from the beginning: %v at %d, want %v at %d", v, r, model, revision)
	}
}

func stays(t *testing.T, o Options) {
	if o.Again == nil {
		t.Skip("this log leaves nothing")
	}
	l := o.Make(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	var model any
	var revision uint64
	for i := range 40 {
		next := Random(rnd, model)
		if p := state.Diff(model, next); len(p) > 0 {
			add(t, l, "/m", revision, p)
			model, revision = next, revision+1
		}
		if i%10 == 0 {
			l = o.Again(t, l)
			if v, r := catchUp(t, l, "/m", nil, 0); r != revision || !reflect.DeepEqual(v, model) {
				t.Fatalf("%v at %d, want %v at %d", v, r, model, revision)
			}
		}
	}
}

func ends(t *testing.T, o Options) {
	l := o.Make(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range l.Follow(ctx, "/m", 0) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		cancel()
	}
	if n != 1 {
		t.Fatalf("%d changes of a mount that has none", n)
	}
}
