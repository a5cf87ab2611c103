package index

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// TestVectorsInMemoryFollowAnIngest compares the vectors that changes have made with those of the file.
func TestVectorsInMemoryFollowAnIngest(t *testing.T) {
	s := Open("", Options{})
	defer s.Close()
	texts := map[string][]byte{}
	for i := range 60 {
		texts[fmt.Sprintf("/d/%02d.txt", i)] = fmt.Appendf(nil, "the harbour number %d has boats of kind %d", i%7, i%5)
	}
	ingest := func() Collection {
		in := Ingest{Owner: "ann/lab", Name: "d", Below: "/d"}
		for _, path := range slices.Sorted(maps.Keys(texts)) {
			in.Items = append(in.Items, Item{path, int64(len(texts[path])), time.Unix(int64(len(texts[path])), 0)})
		}
		in.Read = func(_ context.Context, it Item) (Document, error) {
			text := texts[it.Path]
			return Document{Text: text, Language: "plaintext", Hash: sha256.Sum256(text)}, nil
		}
		_, c, err := s.Ingest(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = s.Find(t.Context(), c.Owner, "", c.Name); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := ingest()
	before, err := s.loadVectors(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	before.lists.Store(newInverted(t.Context(), before, nil))
	for round := range 4 {
		delete(texts, fmt.Sprintf("/d/%02d.txt", 59-round)) // the last number, which SQLite gives away again
		texts[fmt.Sprintf("/d/new%d.txt", round)] = fmt.Appendf(nil, "a new harbour %d with boats", round)
		path := fmt.Sprintf("/d/%02d.txt", round)
		texts[path] = append(texts[path], " and a pier"...)
		c = ingest()
		if s.loaded[c.ID] != before || len(before.later) == 0 {
			t.Fatalf("round %d: the changes are not noted", round)
		}
		v, err := s.loadVectors(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		want, err := s.readVectors(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if v == before || v.revision != want.revision || !slices.Equal(v.ids, want.ids) ||
			!slices.Equal(v.data, want.data) || !slices.Equal(v.scale, want.scale) || !slices.Equal(v.signs, want.signs) {
			t.Fatalf("round %d: %d vectors of revision %d; the file has %d of %d", round, len(v.ids), v.revision,
				len(want.ids), want.revision)
		}
		before = v
	}
}

// Lists of changed vectors have each vector once, and new ones where they belong.
func TestListsFollowAChange(t *testing.T) {
	v := &vectors{dims: 8}
	vector := func(i int) []byte {
		return packVector(normalise([]float32{float32(i % 3), float32(i % 5), 1, float32(i % 2), 0, 0, 0, float32(i % 7)}))
	}
	for i := range 3000 {
		v.appendVector(int64(i), vector(i))
	}
	v.lists.Store(newInverted(t.Context(), v, v.cluster(t.Context(), 20)))
	put := map[int64][]byte{5: vector(11), 1 << 40: vector(12)}
	to := v.changed([]change{{1, []int64{3, 5}, put}, {2, []int64{7}, nil}})
	x := to.lists.Load()
	if len(to.ids) != len(v.ids)-1 || x == nil || len(x.members) != len(to.ids) {
		t.Fatalf("%d vectors of %d", len(to.ids), len(v.ids))
	}
	list := x.assigned()
	for i := 0; i < len(list); i += 7 {
		if want := x.centroids.nearestCentroid(to, i); int(list[i]) != want {
			t.Errorf("vector %d is in list %d, want %d", i, list[i], want)
		}
	}
	if _, has := slices.BinarySearch(to.ids, 7); has {
		t.Error("a removed vector is still there")
	}
	if at, _ := slices.BinarySearch(to.ids, 5); !bytes.Equal(vector(11), packVector(to.float(at))) {
		t.Error("a vector that took the number of a removed one is the old one")
	}
}
