package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// testFences has a holder of a lease go on after another node has it: what it writes is refused where it takes effect.
func testFences(t *testing.T, a, b *Node) {
	ctx := t.Context()
	buckets := map[*Node]*Bucket{}
	for _, n := range []*Node{a, b} {
		bucket, err := n.Bucket(ctx, "fenced", BucketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		buckets[n] = bucket
	}
	early, err := a.Acquire(ctx, "fenced", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	first, err := buckets[a].Fence(ctx, "fence", early)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 { // writes of one fence at once
		all.Go(func() {
			if err := first.Put(ctx, fmt.Sprint("k", i), []byte("first")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := first.Purge(ctx, "k1"); err != nil {
		t.Error(err)
	}
	if _, err := buckets[b].Get(ctx, "k1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a record that was purged: %v", err)
	}
	if err := early.Release(ctx); err != nil { // as if it had ended while its holder was paused
		t.Fatal(err)
	}
	late, err := b.Acquire(ctx, "fenced", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Release(ctx)
	if err := first.Put(ctx, "k2", []byte("before the fence")); err != nil {
		t.Error("until the next holder writes:", err)
	}
	second, err := buckets[b].Fence(ctx, "fence", late)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Put(ctx, "k2", []byte("second")); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"a write": first.Put(ctx, "k2", []byte("late")), "a new record": first.Put(ctx, "new", nil),
		"a purge": first.Purge(ctx, "k2"),
	} {
		if !errors.Is(err, ErrFenced) {
			t.Errorf("%s of the earlier holder: %v", what, err)
		}
	}
	if _, err := buckets[a].Fence(ctx, "fence", early); !errors.Is(err, ErrFenced) {
		t.Errorf("the earlier holder makes a fence again: %v", err)
	}
	if r, err := buckets[a].Get(ctx, "k2"); err != nil || string(r.Value) != "second" {
		t.Errorf("the record: %q, %v", r.Value, err)
	}
}

// testRemovalsAreFenced has a node that was paused while it removed a member go on after another node has removed one.
func testRemovalsAreFenced(t *testing.T, a, b *Node) {
	ctx := t.Context()
	early, err := a.Acquire(ctx, "members", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	fence, err := a.members.Fence(ctx, membersFence, early)
	if err != nil {
		t.Fatal(err)
	}
	if err := early.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.removeMember(ctx, a.ID()); err == nil || !strings.Contains(err.Error(), "members, and it needs") {
		t.Fatalf("one of three is removed: %v", err)
	}
	late, err := b.Acquire(ctx, "members", time.Second) // as a removal does that is not refused at once
	if err != nil {
		t.Fatal(err)
	}
	defer late.Release(ctx)
	if _, err := b.members.Fence(ctx, membersFence, late); err != nil {
		t.Fatal(err)
	}
	if err := fence.Put(ctx, b.ID(), []byte("{}")); !errors.Is(err, ErrFenced) {
		t.Errorf("a removal that was counted before another one: %v", err)
	}
}
