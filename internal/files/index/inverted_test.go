package index

import (
	"context"
	"slices"
	"testing"
	"time"
)

// The inverted file of a collection loses few of the nearest, and each vector is in one list.
func TestAnInvertedFileFindsTheNearest(t *testing.T) {
	n := 40_000 // fewer than the Store makes one for, which take long with the race detector
	v, another := themed(n, 400)
	began := time.Now()
	x := newInverted(t.Context(), v, nil)
	t.Logf("%d lists of %d vectors in %v", len(x.centroids.ids), n, time.Since(began))
	members := slices.Clone(x.members)
	slices.Sort(members)
	for i, m := range members {
		if int(m) != i {
			t.Fatalf("member %d is %d", i, m)
		}
	}
	flat := recallOf(v, 20, another)
	v.lists.Store(x)
	recall := recallOf(v, 20, another)
	t.Logf("recall@50 of 100 is %.4f by the signs of all, %.4f by lists", flat, recall)
	if recall < flat-0.03 {
		t.Errorf("recall is %.3f, and %.3f without lists", recall, flat)
	}
	again := newInverted(t.Context(), v, x.centroids)
	if !slices.Equal(again.members, x.members) {
		t.Error("the same vectors and centroids give other lists")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if newInverted(ended, v, x.centroids) != nil {
		t.Error("lists were made after the end")
	}
}

// A Store makes the lists of a large collection aside, keeps their centroids, and ends this when it is closed.
func TestAStoreInvertsLargeCollections(t *testing.T) {
	s := Open("", Options{})
	small, large, next := &vectors{dims: 64}, &vectors{dims: 64}, &vectors{dims: 64}
	fill := func(v *vectors, n int) {
		for i := range n {
			x := make([]float32, v.dims)
			for d := range x {
				x[d] = float32((i*7+d*d*i)%23) - 11
			}
			v.appendVector(int64(i), packVector(normalise(x)))
		}
	}
	fill(small, 10)
	fill(large, invertedFrom+1)
	fill(next, invertedFrom+2)
	s.invert(small, nil)
	s.invert(large, small)
	s.inverting.Wait()
	if small.lists.Load() != nil || large.lists.Load() == nil {
		t.Fatal("lists are made of the wrong collection")
	}
	s.invert(next, large)
	s.inverting.Wait()
	if next.lists.Load().centroids != large.lists.Load().centroids {
		t.Error("centroids were made again though hardly anything changed")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	closed := &vectors{dims: 64}
	fill(closed, invertedFrom+1)
	s.invert(closed, nil)
	s.inverting.Wait()
	if closed.lists.Load() != nil {
		t.Error("lists were made after Close")
	}
}
