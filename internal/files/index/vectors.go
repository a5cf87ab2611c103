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
	"runtime"
	"slices"
	"sync"
)

// vectors are the vectors of one collection in memory: int8, one after the other.
type vectors struct {
	revision int64
	model    *lsa // nil if an Embedder made them
	dims     int
	ids      []int64 // of the chunks, ascending
	data     []int8
	scale    []float32
}

// maxLoaded is the number of collections whose vectors are kept in memory.
const maxLoaded = 8

// Tuning is how the two rankings of a collection are combined. It was measured on queries made of its own headings.
type Tuning struct {
	Weight  float64 `json:"weight"`  // of the vectors; that of the words is 1 - Weight
	Queries int     `json:"queries"` // that were tried; 0 means too few headings, so that Weight is the default
	Score   float64 `json:"score"`   // mean reciprocal rank with Weight
	Words   float64 `json:"words"`   // the same by words alone
	Vectors float64 `json:"vectors"` // the same by vectors alone
}

// defaultWeight is the weight of the vectors where there are no headings to measure it with.
const defaultWeight = 0.3

type age struct{ chunks, changed int }

func (s *Store) modelAge(ctx context.Context, id int64) (a age, err error) {
	db, err := s.file.DB()
	if err != nil {
		return a, err
	}
	err = db.QueryRowContext(ctx, "SELECT chunks, changed FROM model WHERE collection = ?", id).Scan(&a.chunks, &a.changed)
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

// load returns the vectors of a collection as they are now.
func (s *Store) load(ctx context.Context, c Collection) (*vectors, error) {
	s.mu.Lock()
	v := s.loaded[c.ID]
	s.mu.Unlock()
	if v != nil && v.revision == c.revision {
		return v, nil
	}
	v, err := s.readVectors(ctx, c)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.loaded) >= maxLoaded {
		for id := range s.loaded {
			delete(s.loaded, id)
			break
		}
	}
	s.loaded[c.ID] = v
	return v, nil
}

func (s *Store) forget(id int64) {
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
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return v, err
	}
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
		v.add(id, b)
	}
	return v, rows.Err()
}

func (v *vectors) add(id int64, b []byte) {
	v.ids = append(v.ids, id)
	v.scale = append(v.scale, math.Float32frombits(binary.LittleEndian.Uint32(b))/127)
	for _, x := range b[4:] {
		v.data = append(v.data, int8(x))
	}
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

// nearest returns the n chunks with the largest cosine, the largest first. It compares all of them, on two goroutines
// if they are many.
func (v *vectors) nearest(q []int8, scale float32, n int) []scored {
	workers := 1
	if len(v.ids) > 10_000 {
		workers = min(2, runtime.GOMAXPROCS(0))
	}
	found := make([]lowest, workers)
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			best := make(lowest, 0, n+1)
			for i := w * len(v.ids) / workers; i < (w+1)*len(v.ids)/workers; i++ {
				score := v.at(q, scale, i)
				switch {
				case len(best) < n:
					heap.Push(&best, scored{i, score})
				case score > best[0].score:
					best[0] = scored{i, score}
					heap.Fix(&best, 0)
				}
			}
			found[w] = best
		})
	}
	wait.Wait()
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.at, b.at))
	})
	return all[:min(n, len(all))]
}
