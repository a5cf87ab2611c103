package index

import (
	"context"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

const (
	invertedFrom   = 100_000 // vectors; fewer are compared by their signs, all of them
	leastProbed    = 20_000  // vectors of the lists that a query looks into
	probedShare    = 20      // and at least one in so many of all
	listRounds     = 4       // of k-means
	listSample     = 20      // vectors for each centroid that k-means sees
	nearCentroids  = 8       // centroids whose signs are most alike, which are compared exactly
	assignedAtOnce = 4096    // vectors between two looks at whether the work is still wanted
)

// inverted is an inverted file (IVF) of a large collection: each vector is in the list of the centroid that it is
// nearest to, and a query looks into the lists of the centroids nearest to it alone.
type inverted struct {
	centroids *vectors
	start     []int32 // of each list in members, and the end of the last
	members   []int32 // indexes into vectors.ids, list by list
}

// newInverted divides vectors among about twice the square root of their number of lists. Without centroids it makes
// them by k-means of a sample. It returns nil if ctx ends first. The same vectors give the same lists.
func newInverted(ctx context.Context, v *vectors, centroids *vectors) *inverted {
	if centroids == nil {
		centroids = v.cluster(ctx, 2*int(math.Sqrt(float64(len(v.ids)))))
	}
	list := make([]int32, len(v.ids))
	for i := range list {
		if i%assignedAtOnce == 0 && ctx.Err() != nil {
			return nil
		}
		list[i] = int32(centroids.nearestCentroid(v, i))
	}
	return newLists(centroids, list)
}

// newLists returns the inverted file of vectors of which list says the list of each.
func newLists(centroids *vectors, list []int32) *inverted {
	x := &inverted{
		centroids: centroids, start: make([]int32, len(centroids.ids)+1), members: make([]int32, len(list)),
	}
	for _, l := range list {
		x.start[l+1]++
	}
	for l := range centroids.ids {
		x.start[l+1] += x.start[l]
	}
	next := slices.Clone(x.start)
	for i, l := range list {
		x.members[next[l]] = int32(i)
		next[l]++
	}
	return x
}

// cluster returns k centroids of the vectors, as vectors of length 1.
func (v *vectors) cluster(ctx context.Context, k int) *vectors {
	rng := rand.New(rand.NewPCG(1, uint64(len(v.ids))))
	sample := rng.Perm(len(v.ids))
	sample = sample[:min(len(sample), k*listSample)]
	c := &vectors{dims: v.dims}
	for l, i := range sample[:k] {
		c.appendVector(int64(l), packVector(v.float(i)))
	}
	sums := make([][]float32, k)
	for range listRounds {
		for l := range sums {
			sums[l] = make([]float32, v.dims)
		}
		count := make([]int, k)
		for n, i := range sample {
			if n%assignedAtOnce == 0 && ctx.Err() != nil {
				return c
			}
			l := c.nearestCentroid(v, i)
			count[l]++
			for d, x := range v.data[i*v.dims : (i+1)*v.dims] {
				sums[l][d] += float32(x) * v.scale[i]
			}
		}
		c = &vectors{dims: v.dims}
		for l, sum := range sums {
			if count[l] == 0 {
				sum = v.float(sample[rng.IntN(len(sample))])
			}
			c.appendVector(int64(l), packVector(normalise(sum)))
		}
	}
	return c
}

// float returns vector number i.
func (v *vectors) float(i int) []float32 {
	f := make([]float32, v.dims)
	for d, x := range v.data[i*v.dims : (i+1)*v.dims] {
		f[d] = float32(x) * v.scale[i]
	}
	return f
}

// nearestCentroid returns which of the vectors c is nearest to vector i of v, among those whose signs are most alike.
func (c *vectors) nearestCentroid(v *vectors, i int) int {
	words := v.signWords()
	own := v.signs[i*words : (i+1)*words]
	var at, differ [nearCentroids]int // the most alike, the best first
	n := 0
	for l := range c.ids {
		d := 0
		for w, x := range c.signs[l*words : (l+1)*words] {
			d += bits.OnesCount64(x ^ own[w])
		}
		if n == nearCentroids && d >= differ[n-1] {
			continue
		}
		n = min(n+1, nearCentroids)
		p := n - 1
		for ; p > 0 && differ[p-1] > d; p-- {
			at[p], differ[p] = at[p-1], differ[p-1]
		}
		at[p], differ[p] = l, d
	}
	best, most := 0, float32(math.Inf(-1))
	q := v.data[i*v.dims : (i+1)*v.dims]
	for _, l := range at[:n] {
		if s := c.at(q, 1, l); s > most {
			best, most = l, s
		}
	}
	return best
}

// probe returns the members of the lists nearest to a query.
func (x *inverted) probe(q []int8, scale float32) []int32 {
	most := max(leastProbed, len(x.members)/probedShare)
	near := make([]scored, len(x.centroids.ids))
	for l := range near {
		near[l] = scored{l, x.centroids.at(q, scale, l)}
	}
	slices.SortFunc(near, bestFirst)
	var all []int32
	for _, l := range near {
		if len(all) >= most {
			break
		}
		all = append(all, x.members[x.start[l.at]:x.start[l.at+1]]...)
	}
	return all
}

// invert begins to make the inverted file of vectors that were loaded, if they are many. Until it is there, queries
// compare the signs of all. Lists keep the centroids of those before them, unless the model is another one or the
// collection has doubled since.
func (s *Store) invert(v, before *vectors) {
	if len(v.ids) <= invertedFrom || v.lists.Load() != nil {
		return
	}
	var centroids *vectors
	if before != nil && before.dims == v.dims && sameModel(before.model, v.model) {
		if x := before.lists.Load(); x != nil && 2*len(x.members) > len(v.ids) {
			centroids = x.centroids
		}
	}
	s.inverting.Go(func() {
		s.oneAtATime.Lock()
		defer s.oneAtATime.Unlock()
		if x := newInverted(s.closing, v, centroids); x != nil {
			v.lists.Store(x)
		}
	})
}

// sameModel reports whether two models give a text the same vector.
func sameModel(a, b *lsa) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.rows, b.rows)
}
