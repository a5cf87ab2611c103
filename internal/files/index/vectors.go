package index

import (
	"cmp"
	"container/heap"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// vectors are the vectors of one collection in memory: int8, one after the other.
type vectors struct {
	revision int64
	model    *lsa // nil if an Embedder made them
	dims     int
	ids      []int64 // of the chunks, ascending
	data     []int8
	scale    []float32
	signs    []uint64 // the sign of each dimension, signWords words for each chunk

	elsewhere bool // a VectorStore has them

	lists atomic.Pointer[inverted] // nil as long as it is not made, and for few vectors

	later       []change // that follow revision; Store.mu guards it and laterChunks
	laterChunks int

	mu     sync.Mutex
	counts map[string]int // of the chunks that have a stem, as far as they were asked for
}

// signWords is the number of words that hold the signs of a vector.
func (v *vectors) signWords() int { return (v.dims + 63) / 64 }

// maxLoaded is the number of collections whose vectors are kept in memory.
const maxLoaded = 8

// Tuning is how the two rankings of a collection are combined. It was measured on queries made of its own headings.
type Tuning struct {
	Weight  float64 `json:"weight"`  // of the vectors; that of the words is 1 - Weight
	Queries int     `json:"queries"` // that were tried; 0 means too few headings, so that Weight is the default
	Score   float64 `json:"score"`   // mean reciprocal rank with Weight
	Words   float64 `json:"words"`   // the same by words alone
	Vectors float64 `json:"vectors"` // the same by vectors alone
	// Neighbours is the weight of the scores of similar passages in that of a passage. Similarity is that of the
	// vectors, so that it is trusted as they are; 0 in collections of earlier versions.
	Neighbours float64 `json:"neighbours"`
}

// defaultWeight is the weight of the vectors where there are no headings to measure it with.
const defaultWeight = 0.3

// embedderWeight is the weight of the vectors of an Embedder. It is not measured for each collection: that would need
// the vectors of thousands of texts without their headings.
const embedderWeight = 0.5

type age struct{ chunks, changed int }

func (s *Store) modelAge(ctx context.Context, id int64) (a age, err error) {
	db, err := s.file.DB()
	if err != nil {
		return a, err
	}
	err = db.QueryRowContext(ctx, "SELECT chunks, changed FROM model WHERE collection = ?", id).
		Scan(&a.chunks, &a.changed)
	return a, err
}

func (s *Store) ageModel(ctx context.Context, id int64, changed int) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "UPDATE model SET changed = ? WHERE collection = ?", changed, id)
	return err
}

func readTuning(ctx context.Context, db *sql.DB, id int64) (*Tuning, error) {
	var text string
	err := db.QueryRowContext(ctx, "SELECT tuned FROM model WHERE collection = ?", id).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var t Tuning
	return &t, json.Unmarshal([]byte(text), &t)
}

// readModel returns the model of a collection, nil if it has none.
func (s *Store) readModel(ctx context.Context, id int64) (*lsa, error) {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return nil, err
	}
	var data []byte
	err = db.QueryRowContext(ctx, "SELECT data FROM model WHERE collection = ?", id).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) || err == nil && len(data) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return unpackLSA(data)
}

// loadVectors returns the vectors of a collection as they are now.
func (s *Store) loadVectors(ctx context.Context, c Collection) (*vectors, error) {
	s.mu.Lock()
	v := s.loaded[c.ID]
	var later []change
	if v != nil {
		later = v.later
	}
	s.mu.Unlock()
	if v != nil && v.revision >= c.revision {
		return v, nil
	}
	if v != nil && v.revision+int64(len(later)) >= c.revision {
		v = v.changed(later)
	} else {
		var err error
		if v, err = s.readVectors(ctx, c); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.loaded[c.ID]
	if before != nil && before.revision >= v.revision {
		return before, nil // another query has loaded them
	}
	if before != nil && before.revision+int64(len(before.later)) > v.revision && before.revision < v.revision {
		v.later = before.later[v.revision-before.revision:]
		for _, c := range v.later {
			v.laterChunks += len(c.gone) + len(c.put)
		}
	}
	if before == nil && len(s.loaded) >= maxLoaded {
		for id := range s.loaded {
			delete(s.loaded, id)
			break
		}
	}
	s.loaded[c.ID] = v
	s.invert(v, before)
	return v, nil
}

func (s *Store) dropVectors(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loaded, id)
}

func (s *Store) readVectors(ctx context.Context, c Collection) (v *vectors, err error) {
	v = &vectors{revision: c.revision}
	if s.embed == nil {
		if v.model, err = s.readModel(ctx, c.ID); err != nil || v.model == nil {
			return v, err
		}
		v.dims = v.model.dims
	} else {
		_, v.dims = s.embed.Space()
	}
	if s.vectors != nil {
		v.elsewhere = true
		return v, nil
	}
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return v, err
	}
	var n int // known before, because slices that grow need twice the memory
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM vector WHERE collection = ?", c.ID).Scan(&n); err != nil {
		return nil, err
	}
	v.ids, v.scale = make([]int64, 0, n), make([]float32, 0, n)
	v.data, v.signs = make([]int8, 0, n*v.dims), make([]uint64, 0, n*v.signWords())
	rows, err := db.QueryContext(ctx, "SELECT chunk, data FROM vector WHERE collection = ? ORDER BY chunk", c.ID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var b sql.RawBytes
		if err := rows.Scan(&id, &b); err != nil {
			return nil, err
		}
		if len(b) != 4+v.dims {
			continue // of an earlier model: a query meanwhile sees it by its words alone
		}
		v.appendVector(id, b)
	}
	return v, rows.Err()
}

func (v *vectors) appendVector(id int64, b []byte) {
	v.ids = append(v.ids, id)
	v.scale = append(v.scale, math.Float32frombits(binary.LittleEndian.Uint32(b))/127)
	from := len(v.data)
	for _, x := range b[4:] {
		v.data = append(v.data, int8(x))
	}
	v.signs = appendSigns(v.signs, v.data[from:])
}

// appendSigns appends a bit for each dimension, set if it is positive.
func appendSigns(signs []uint64, data []int8) []uint64 {
	var word uint64
	for i, x := range data {
		if x > 0 {
			word |= 1 << (i % 64)
		}
		if i%64 == 63 || i == len(data)-1 {
			signs = append(signs, word)
			word = 0
		}
	}
	return signs
}

// at returns the cosine of a query and chunk number i.
func (v *vectors) at(q []int8, scale float32, i int) float32 {
	return float32(dot(q, v.data[i*v.dims:(i+1)*v.dims])) * scale * v.scale[i]
}

// dot returns the product of two vectors of one length.
func dot(a, b []int8) (sum int32) {
	b = b[:len(a)]
	var s0, s1, s2, s3 int32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += int32(a[i]) * int32(b[i])
		s1 += int32(a[i+1]) * int32(b[i+1])
		s2 += int32(a[i+2]) * int32(b[i+2])
		s3 += int32(a[i+3]) * int32(b[i+3])
	}
	for ; i < len(a); i++ {
		s0 += int32(a[i]) * int32(b[i])
	}
	return s0 + s1 + s2 + s3
}

// quantise returns a vector as int8 with the factor by which to multiply it.
func quantise(v []float32) ([]int8, float32) {
	b := packVector(v)
	q := make([]int8, len(v))
	for i := range q {
		q[i] = int8(b[4+i])
	}
	return q, math.Float32frombits(binary.LittleEndian.Uint32(b)) / 127
}

// scored is a chunk with a score.
type scored struct {
	at    int // index into vectors.ids
	score float32
}

// lowest is a heap of the best ones, the worst first.
type lowest []scored

func (h lowest) Len() int           { return len(h) }
func (h lowest) Less(i, j int) bool { return h[i].score < h[j].score }
func (h lowest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lowest) Push(x any)        { *h = append(*h, x.(scored)) }
func (h *lowest) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

const (
	flatMost  = 10_000 // vectors that are all compared
	shortlist = 20     // times as many as are wanted are compared of more
)

// nearest returns the n chunks with the largest cosine, the largest first. Of many it compares those whose dimensions
// have most signs in common with the query, which finds nearly all: TestShortlistFindsTheNearest measures it.
func (v *vectors) nearest(q []int8, scale float32, n int) []scored {
	best := make(lowest, 0, n+1)
	try := func(i int) {
		score := v.at(q, scale, i)
		switch {
		case len(best) < n:
			heap.Push(&best, scored{i, score})
		case score > best[0].score:
			best[0] = scored{i, score}
			heap.Fix(&best, 0)
		}
	}
	if len(v.ids) <= flatMost {
		for i := range v.ids {
			try(i)
		}
	} else {
		for _, i := range v.alike(q, scale, shortlist*n) {
			try(int(i))
		}
	}
	slices.SortFunc(best, bestFirst)
	return best
}

// bestFirst orders by score.
func bestFirst(a, b scored) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.at, b.at))
}

// alike returns about n chunks, those with the fewest signs that differ from those of a vector; of the lists nearest to
// it if there is an inverted file.
func (v *vectors) alike(q []int8, scale float32, n int) []int32 {
	if x := v.lists.Load(); x != nil {
		among := x.probe(q, scale)
		return v.fewestDiffer(q, n, len(among), func(i int) int32 { return among[i] })
	}
	return v.fewestDiffer(q, n, len(v.ids), func(i int) int32 { return int32(i) })
}

// fewestDiffer is alike among the chunks that member returns for 0 to total - 1.
func (v *vectors) fewestDiffer(q []int8, n, total int, member func(i int) int32) []int32 {
	words := v.signWords()
	own := appendSigns(nil, q)
	differ := make([]uint16, total)
	var count [1 << 12]int
	for m := range differ {
		d, i := 0, int(member(m))
		for w, x := range v.signs[i*words : (i+1)*words] {
			d += bits.OnesCount64(x ^ own[w])
		}
		d = min(d, len(count)-1)
		differ[m] = uint16(d)
		count[d]++
	}
	most, sum := 0, 0
	for most < len(count)-1 && sum+count[most] < n {
		sum += count[most]
		most++
	}
	list := make([]int32, 0, sum+count[most])
	for i, d := range differ {
		if int(d) <= most {
			list = append(list, member(i))
		}
	}
	return list
}
