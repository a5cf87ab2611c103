package index

import (
	"slices"
	"testing"
)

// Passages that resemble each other support each other against one that stands alone.
func TestNeighboursSupportEachOther(t *testing.T) {
	v := &vectors{dims: 4}
	for i, x := range [][]float32{{1, 0, 0, 0}, {0, 1, 0.1, 0}, {0, 1, 0, 0.1}, {0, 1, 0.1, 0.1}, {0, 0, 0, 1}} {
		v.appendVector(int64(i), packVector(normalise(x)))
	}
	list := func() []candidate {
		return []candidate{{id: 0, score: 1}, {id: 1, score: .95}, {id: 2, score: .9}, {id: 77, score: .9}, {id: 3, score: .85},
			{id: 4, score: .1}}
	}
	order := func(all []candidate) (ids []int64) {
		for _, c := range all {
			ids = append(ids, c.id)
		}
		return ids
	}
	none := list()
	v.askNeighbours(none, 0)
	if !slices.Equal(none, list()) {
		t.Errorf("without a weight the scores change: %v", none)
	}
	some := list()
	v.askNeighbours(some, 0.5)
	if got := order(some); slices.Index(got, 0) < slices.Index(got, 3) || got[5] != 4 {
		t.Errorf("the order is %v", got)
	}
	for i, c := range some {
		if c.score < .1 || c.score > 1 || i > 0 && c.score > some[i-1].score {
			t.Errorf("the scores are %v", some)
		}
	}
}

// A combination does not depend on those before it.
func TestFuseForgetsEarlierScores(t *testing.T) {
	all := map[int64]*candidate{1: {id: 1, words: 4, vecs: .5}, 2: {id: 2, words: 2, vecs: 1}}
	once := fuse(all, .5)
	if twice := fuse(all, .5); !slices.Equal(once, twice) || once[0].score > 1 {
		t.Errorf("first %v, then %v", once, twice)
	}
}
