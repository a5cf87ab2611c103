package index

import (
	"maps"
	"slices"
)

// change is what one transaction did to the vectors of a collection. A collection that is in memory is brought up to
// date with it, because reading hundreds of thousands of vectors again takes a second.
type change struct {
	revision int64   // of the collection after it
	gone     []int64 // removed chunks; SQLite may give their numbers to those of put
	put      map[int64][]byte
}

// noteChange keeps a change for the next query. Changes that do not follow each other, as those of several processes,
// and those of much of the collection, are dropped: its vectors are then read again.
func (s *Store) noteChange(id int64, c change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.loaded[id]
	if v == nil || c.revision != v.revision+int64(len(v.later))+1 {
		return
	}
	v.laterChunks += len(c.gone) + len(c.put)
	if v.later = append(v.later, c); v.laterChunks > max(len(v.ids)/4, 1000) {
		v.later = nil
	}
}

// isLoaded reports whether a query may use the changes of a collection.
func (s *Store) isLoaded(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded[id] != nil
}

// changed returns the vectors after some changes. Those of v stay as they are, because queries use them.
func (v *vectors) changed(changes []change) *vectors {
	last := map[int64][]byte{} // by chunk; nil means that it is gone
	for _, c := range changes {
		for _, id := range c.gone {
			last[id] = nil
		}
		maps.Copy(last, c.put)
	}
	ids := make([]int64, 0, len(last))
	for id := range last {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	size := len(v.ids) + len(ids)
	to := &vectors{
		revision: v.revision + int64(len(changes)), model: v.model, dims: v.dims,
		ids: make([]int64, 0, size), scale: make([]float32, 0, size),
		data: make([]int8, 0, size*v.dims), signs: make([]uint64, 0, size*v.signWords()),
	}
	lists := v.lists.Load()
	var list, next []int32 // the list of each vector
	if lists != nil {
		list, next = lists.assigned(), make([]int32, 0, size)
	}
	from := 0
	copyUntil := func(until int) {
		to.ids, to.scale = append(to.ids, v.ids[from:until]...), append(to.scale, v.scale[from:until]...)
		to.data = append(to.data, v.data[from*v.dims:until*v.dims]...)
		words := v.signWords()
		to.signs = append(to.signs, v.signs[from*words:until*words]...)
		if lists != nil {
			next = append(next, list[from:until]...)
		}
	}
	for _, id := range ids {
		at, has := slices.BinarySearch(v.ids, id)
		copyUntil(at)
		if from = at; has {
			from++
		}
		if b := last[id]; len(b) == 4+v.dims {
			to.appendVector(id, b)
			if lists != nil {
				next = append(next, int32(lists.centroids.nearestCentroid(to, len(to.ids)-1)))
			}
		}
	}
	copyUntil(len(v.ids))
	if lists != nil && 2*len(list) > len(to.ids) {
		to.lists.Store(newLists(lists.centroids, next))
	}
	return to
}

// assigned returns the list of each vector.
func (x *inverted) assigned() []int32 {
	list := make([]int32, len(x.members))
	for l := range len(x.start) - 1 {
		for _, m := range x.members[x.start[l]:x.start[l+1]] {
			list[m] = int32(l)
		}
	}
	return list
}
