package index

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Mode is which rankings a query uses.
type Mode string

const (
	Auto    Mode = "auto" // both, combined as the collection is tuned
	Lexical Mode = "lexical"
	Vector  Mode = "vector"
)

// Query is a question to a collection.
type Query struct {
	Text  string
	Most  int // hits; 0 means 5
	Mode  Mode
	Allow func(f FileInfo) bool // reports whether the caller may see a file; nil means all
	// Only selects files by their paths before they are counted; nil means all.
	Only func(path string) bool
}

// FileInfo is a file as it was ingested.
type FileInfo struct {
	Path     string
	Title    string
	Size     int64
	Modified time.Time
	Hash     string
}

// Hit is a passage: a chunk, or several that follow each other in one file.
type Hit struct {
	File    FileInfo
	Chunk   int // number of the first chunk in its file, from 0
	Line    int
	Last    int
	Page    int
	Heading string
	Text    string
	Score   float64  // 0 to 1; of both rankings, and of similar passages
	Words   float64  // BM25
	Vectors float64  // cosine
	Rerank  *float64 // score of the Reranker; nil means that it was not asked
	last    int      // number of the last chunk
}

// Answer is what a query found, the best first.
type Answer struct {
	Hits   []Hit
	Hidden int // files that Allow refused
	// Coverage is the share of the question's words that the best three hits contain, rare words counting more.
	Coverage float64
	Weak     bool // little speaks for the hits
	// Unranked is why the Reranker could not be asked: the hits are in the order of the rankings. nil means that it was
	// asked, or that there is none.
	Unranked error
}

const (
	candidates     = 200 // of each ranking
	rerankMost     = 30  // passages that a Reranker is given
	nearWeight     = 0.2 // of pairs of words that stand close together
	feedbackChunks = 3   // that a question's vector is moved towards
	feedbackWeight = 1.0
	weakBelow      = 0.4 // of Coverage
)

// wordWeights weigh headings, text, and the parts of names and of the file's name.
const wordWeights = "1.5, 1.0, 0.2"

// candidate is a chunk in one or both rankings.
type candidate struct {
	id          int64
	words, vecs float64
	score       float64
}

// Query finds the chunks of a collection that answer a question.
func (s *Store) Query(ctx context.Context, c Collection, q Query) (a Answer, err error) {
	if err := s.Matches(c); err != nil {
		return a, err
	}
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return a, errors.Join(err, ifNil(db))
	}
	// The revision is read again, because an ingest may have changed the collection since it was found.
	row := db.QueryRowContext(ctx, "SELECT "+collectionColumns+" FROM collection WHERE id = ?", c.ID)
	if c, err = scanCollection(row); err != nil {
		return a, ErrNotFound
	}
	v, err := s.loadVectors(ctx, c)
	if err != nil {
		return a, err
	}
	t, err := readTuning(ctx, db, c.ID)
	if err != nil {
		return a, err
	}
	list := terms(q.Text)
	ranked, err := s.rank(ctx, c, v, t, q, list)
	if err != nil {
		return a, err
	}
	most := q.Most
	if most <= 0 {
		most = 5
	}
	rerank := s.reranks != nil && (q.Mode == Auto || q.Mode == "")
	if q.Most = most; rerank {
		q.Most = max(most, rerankMost)
	}
	if a.Hits, a.Hidden, err = s.collect(ctx, c, q, ranked); err != nil {
		return a, err
	}
	if rerank && len(a.Hits) > 0 {
		a.Unranked = s.rerank(ctx, q.Text, a.Hits)
	}
	a.Hits = a.Hits[:min(most, len(a.Hits))]
	a.Coverage = coverage(list, v.model, a.Hits)
	a.Weak = len(a.Hits) == 0 || a.Coverage < weakBelow
	return a, nil
}

// rerank orders hits by the scores of the Reranker. Passages that the caller may not read are not among them.
func (s *Store) rerank(ctx context.Context, question string, hits []Hit) error {
	texts := make([]string, len(hits))
	for i, h := range hits {
		texts[i] = embedded(headings(h.File.Title, h.Heading), h.Text)
	}
	scores, err := s.reranks.Rerank(ctx, question, texts)
	if err == nil && len(scores) != len(hits) {
		err = fmt.Errorf("the reranker returned %d scores for %d texts", len(scores), len(hits))
	}
	if err != nil {
		return err
	}
	for i := range hits {
		hits[i].Rerank = &scores[i]
	}
	slices.SortStableFunc(hits, func(a, b Hit) int { return cmp.Compare(*b.Rerank, *a.Rerank) })
	return nil
}

// rank returns the candidates of both rankings, the best first.
func (s *Store) rank(
	ctx context.Context, c Collection, v *vectors, t *Tuning, q Query, list []string,
) ([]candidate, error) {
	weight := defaultWeight
	if t != nil {
		weight = t.Weight
	}
	switch {
	case q.Mode == Lexical || len(v.ids) == 0 && !v.elsewhere:
		weight = 0
	case q.Mode == Vector || len(list) == 0:
		weight = 1
	}
	all := map[int64]*candidate{}
	if weight < 1 {
		var err error
		if list, err = s.selective(ctx, c, v, list); err != nil {
			return nil, err
		}
		if err := s.byWords(ctx, c, list, all); err != nil {
			return nil, err
		}
	}
	if weight > 0 {
		if err := s.byVectors(ctx, c, v, q.Text, all); err != nil {
			return nil, err
		}
	}
	if weight < 1 {
		if err := s.byPairs(ctx, c, q.Text, list, all); err != nil {
			return nil, err
		}
	}
	ranked := fuse(all, weight)
	if t != nil && weight > 0 && weight < 1 {
		v.askNeighbours(ranked, t.Neighbours)
	}
	return ranked, nil
}

const (
	voters   = 100 // candidates that are compared with each other
	nearVote = 10  // of them, whose scores count for a candidate
)

// askNeighbours moves the scores of the best candidates towards those of the candidates that are most similar to them,
// because texts that answer the same question resemble each other. weight is that of the neighbours.
func (v *vectors) askNeighbours(ranked []candidate, weight float64) {
	best := ranked[:min(voters, len(ranked))]
	if weight == 0 || v.elsewhere || len(best) < 3 {
		return
	}
	at := make([]int, len(best))
	for i, c := range best {
		var ok bool
		if at[i], ok = slices.BinarySearch(v.ids, c.id); !ok {
			at[i] = -1 // it was stored after the vectors were read
		}
	}
	cosines := make([]float64, len(best)*len(best))
	for i, a := range at {
		for j, b := range at[:i] {
			if a < 0 || b < 0 {
				continue
			}
			cosine := max(0, float64(v.at(v.data[a*v.dims:(a+1)*v.dims], v.scale[a], b)))
			cosines[i*len(best)+j], cosines[j*len(best)+i] = cosine, cosine
		}
	}
	scores := make([]float64, len(best))
	for i := range best {
		own := cosines[i*len(best):][:len(best)]
		var sum, all float64
		for _, j := range mostSimilar(own) {
			sum += own[j] * own[j] * best[j].score
			all += own[j] * own[j]
		}
		if scores[i] = best[i].score; at[i] >= 0 {
			scores[i] += weight * (sum/max(all, 1e-9) - best[i].score)
		}
	}
	lowest := best[len(best)-1].score
	for i := range best {
		best[i].score = max(scores[i], lowest) // none falls below those that were not compared
	}
	slices.SortStableFunc(best, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
}

// mostSimilar returns the numbers of the largest cosines, nearVote at most.
func mostSimilar(cosines []float64) []int {
	most := make([]int, 0, nearVote+1)
	for j, c := range cosines {
		if len(most) == nearVote && c <= cosines[most[nearVote-1]] {
			continue
		}
		at := len(most)
		for at > 0 && c > cosines[most[at-1]] {
			at--
		}
		if most = slices.Insert(most, at, j); len(most) > nearVote {
			most = most[:nearVote]
		}
	}
	return most
}

// In collections of more than selectFrom chunks, the words of a question may match matchBudget chunks together, because
// SQLite scores each of them. Rare words select better in large ones.
const (
	selectFrom       = 6000
	matchBudget      = 4000
	matchBudgetLarge = 1000
	largeCollection  = 20_000 // chunks
)

// selective returns of the words of a question those that few chunks have, the rarest first, until they match as many
// chunks as the budget allows, and at least one. The others hardly change a score: it is rare words that decide.
func (s *Store) selective(ctx context.Context, c Collection, v *vectors, list []string) ([]string, error) {
	if v.model == nil || len(v.ids) <= selectFrom || len(list) <= 2 {
		return list, nil
	}
	budget := matchBudget
	if len(v.ids) > largeCollection {
		budget = matchBudgetLarge
	}
	count := map[string]int{}
	for _, w := range list {
		n, err := s.countOf(ctx, c, v, w)
		if err != nil {
			return nil, err
		}
		count[w] = n
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	sum := 0
	for i, w := range list {
		if sum += count[w]; i > 0 && sum > budget {
			return list[:i], nil
		}
	}
	return list, nil
}

// countOf returns how many chunks have a word. What the model estimates suffices for words that many have.
func (s *Store) countOf(ctx context.Context, c Collection, v *vectors, word string) (n int, err error) {
	word = stem(word)
	if i, ok := v.model.terms[word]; ok {
		n = int(float64(len(v.ids)) / (math.Exp(float64(v.model.idf[i])) - 1))
		if n > matchBudget {
			return n, nil
		}
	}
	v.mu.Lock()
	known, ok := v.counts[word]
	v.mu.Unlock()
	if ok {
		return known, nil
	}
	db, err := s.file.Reader()
	if err != nil {
		return 0, err
	}
	query := fmt.Sprintf("SELECT doc FROM counts_%d WHERE term = ?", c.ID)
	switch err := db.QueryRowContext(ctx, query, word).Scan(&known); {
	case errors.Is(err, sql.ErrNoRows):
		known = 0
	case err != nil:
		if context.Cause(ctx) != nil {
			return 0, context.Cause(ctx)
		}
		known = n // an earlier version made the collection
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.counts == nil || len(v.counts) >= mostCounts {
		v.counts = map[string]int{}
	}
	v.counts[word] = known
	return known, nil
}

// mostCounts is the number of words of a collection whose counts are remembered.
const mostCounts = 20_000

// fuse combines the scores of candidates, each divided by the largest of its ranking, so that their differences
// count and not their places.
func fuse(all map[int64]*candidate, weight float64) []candidate {
	var words, vecs float64
	for _, c := range all {
		words, vecs = max(words, c.words), max(vecs, c.vecs)
	}
	list := make([]candidate, 0, len(all))
	for _, c := range all {
		c.score = 0 // of a combination before
		if words > 0 {
			c.score += (1 - weight) * c.words / words
		}
		if vecs > 0 {
			c.score += weight * max(c.vecs, 0) / vecs
		}
		if c.score > 0 {
			list = append(list, *c)
		}
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id))
	})
	return list
}

func (s *Store) byWords(ctx context.Context, c Collection, list []string, all map[int64]*candidate) error {
	if len(list) == 0 {
		return nil
	}
	db, err := s.file.Reader()
	if err != nil {
		return err
	}
	return searchWords(ctx, db, c, match(list), 1, all)
}

// byPairs adds to the scores of candidates in which pairs of words of the question stand close together.
func (s *Store) byPairs(
	ctx context.Context, c Collection, question string, list []string, all map[int64]*candidate,
) error {
	pairs := near(question, list)
	if pairs == "" || len(all) == 0 {
		return nil
	}
	db, err := s.file.Reader()
	if err != nil {
		return err
	}
	return searchWords(ctx, db, c, pairs, nearWeight, all)
}

// searchWords adds the BM25 of what an FTS5 expression matches, times a weight. Chunks that are not candidates become
// some only if the weight is 1.
func searchWords(
	ctx context.Context, db *sql.DB, c Collection, expression string, weight float64, all map[int64]*candidate,
) error {
	rows, err := db.QueryContext(ctx, fmt.Sprintf(
		"SELECT rowid, -bm25(words_%d, %s) AS score FROM words_%[1]d WHERE words_%[1]d MATCH ? ORDER BY score DESC LIMIT %[3]d",
		c.ID,
		wordWeights,
		candidates,
	), expression)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var score float64
		if err := rows.Scan(&id, &score); err != nil {
			return err
		}
		f := all[id]
		if f == nil && weight < 1 {
			continue
		}
		if f == nil {
			f = &candidate{id: id}
			all[id] = f
		}
		f.words += weight * score
	}
	return rows.Err()
}

// byVectors adds the nearest chunks, and the cosine of those that are candidates already.
func (s *Store) byVectors(
	ctx context.Context, c Collection, v *vectors, text string, all map[int64]*candidate,
) error {
	vec, err := s.vectorOf(ctx, v, text)
	if err != nil {
		return err
	}
	if v.elsewhere {
		return s.byStore(ctx, c, vec, all)
	}
	q, scale := quantise(vec)
	v.compare(q, scale, all)
	if v.model != nil { // an Embedder knows words that the question lacks
		q, scale = quantise(v.feedback(vec, fuse(all, defaultWeight)))
		v.compare(q, scale, all)
	}
	for _, n := range v.nearest(q, scale, candidates) {
		if id := v.ids[n.at]; all[id] == nil && n.score > 0 {
			all[id] = &candidate{id: id, vecs: float64(n.score)}
		}
	}
	return nil
}

// byStore asks the VectorStore for the nearest chunks, and for the cosines of those that are candidates already.
func (s *Store) byStore(ctx context.Context, c Collection, vec []float32, all map[int64]*candidate) error {
	known := slices.Sorted(maps.Keys(all))
	for _, among := range [][]int64{nil, known} {
		n := candidates
		if among != nil {
			n = len(among)
		}
		ids, cosines, err := s.vectors.Nearest(ctx, StoredAs(c), vec, n, among)
		if err != nil {
			return err
		}
		for i, id := range ids {
			if all[id] == nil && cosines[i] > 0 {
				all[id] = &candidate{id: id}
			}
			if all[id] != nil {
				all[id].vecs = float64(cosines[i])
			}
		}
		if len(known) == 0 {
			break
		}
	}
	return nil
}

// compare sets the cosines of candidates.
func (v *vectors) compare(q []int8, scale float32, all map[int64]*candidate) {
	for _, f := range all {
		if i, ok := slices.BinarySearch(v.ids, f.id); ok {
			f.vecs = float64(v.at(q, scale, i))
		}
	}
}

// feedback moves the vector of a question towards those of the best candidates, so that words which the question
// lacks are found, too.
func (v *vectors) feedback(question []float32, best []candidate) []float32 {
	moved := slices.Clone(question)
	for _, f := range best[:min(len(best), feedbackChunks)] {
		i, ok := slices.BinarySearch(v.ids, f.id)
		if !ok {
			continue
		}
		for d, x := range v.data[i*v.dims : (i+1)*v.dims] {
			moved[d] += feedbackWeight / feedbackChunks * v.scale[i] * float32(x)
		}
	}
	return normalise(moved)
}

func (s *Store) vectorOf(ctx context.Context, v *vectors, text string) ([]float32, error) {
	if s.embed == nil {
		return v.model.embed([]string{text})[0], nil
	}
	all, err := s.embed.Embed(ctx, []string{text}, true)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 || len(all[0]) != v.dims {
		return nil, fmt.Errorf("the embedder returned %d vectors for one text", len(all))
	}
	return all[0], nil
}

// collect reads candidates until there are enough hits. It joins neighbours and leaves out near duplicates.
func (s *Store) collect(
	ctx context.Context, c Collection, q Query, ranked []candidate,
) (hits []Hit, hidden int, err error) {
	db, err := s.file.Reader()
	if err != nil {
		return nil, 0, err
	}
	most := cmp.Or(q.Most, 5)
	stmt, err := db.PrepareContext(ctx, `SELECT path, title, size, modified, hash, seq, line, last, page, heading, text
		FROM chunk JOIN file ON file.id = chunk.file WHERE chunk.id = ? AND file.collection = ?`)
	if err != nil {
		return nil, 0, err
	}
	defer stmt.Close()
	allowed := map[string]bool{}
	var seen []map[uint64]bool
	for _, r := range ranked {
		h, err := scanHit(stmt.QueryRowContext(ctx, r.id, c.ID))
		if errors.Is(err, sql.ErrNoRows) {
			continue // it was removed meanwhile, or a VectorStore has vectors that a killed host left
		}
		if err != nil {
			return nil, 0, err
		}
		h.Score, h.Words, h.Vectors = r.score, r.words, r.vecs
		if q.Only != nil && !q.Only(h.File.Path) {
			continue
		}
		ok, known := allowed[h.File.Path]
		if !known {
			ok = q.Allow == nil || q.Allow(h.File)
			if allowed[h.File.Path] = ok; !ok {
				hidden++
			}
		}
		if !ok || join(hits, h) {
			continue
		}
		if len(hits) >= most {
			break
		}
		print := shingles(h.Text)
		if slices.ContainsFunc(seen, func(other map[uint64]bool) bool { return similar(print, other) }) {
			continue
		}
		seen = append(seen, print)
		hits = append(hits, h)
	}
	return hits, hidden, context.Cause(ctx)
}

// join adds a chunk to the hit that it follows or precedes.
func join(hits []Hit, h Hit) bool {
	for i := range hits {
		to := &hits[i]
		if to.File.Path != h.File.Path {
			continue
		}
		switch {
		case h.Chunk >= to.Chunk && h.last <= to.last:
			return true
		case h.Chunk == to.last+1:
			to.Text += gap(to.Last, h.Line) + h.Text
			to.Last, to.last = h.Last, h.last
			return true
		case h.last == to.Chunk-1:
			to.Text = h.Text + gap(h.Last, to.Line) + to.Text
			to.Line, to.Chunk, to.Page, to.Heading = h.Line, h.Chunk, h.Page, h.Heading
			return true
		}
	}
	return false
}

// gap is what stands between two chunks, so that their lines count on.
func gap(last, next int) string {
	if next <= last {
		return " " // two pieces of one line
	}
	return strings.Repeat("\n", min(next-last, 3))
}

// shingles returns the hashes of each four words that follow each other.
func shingles(text string) map[uint64]bool {
	const prime = 1099511628211
	set := map[uint64]bool{}
	var last [4]uint64
	n := 0
	words(text, func(w string) {
		h := uint64(14695981039346656037)
		for i := range len(w) {
			h = (h ^ uint64(w[i])) * prime
		}
		copy(last[:], last[1:])
		last[3] = h
		if n++; n >= 4 {
			set[((last[0]*31+last[1])*31+last[2])*31+last[3]] = true
		}
	})
	return set
}

// similar reports whether two texts have most of their words in common.
func similar(a, b map[uint64]bool) bool {
	if len(a) < 8 || len(b) < 8 {
		return false
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	both := 0
	for h := range a {
		if b[h] {
			both++
		}
	}
	return both*10 >= 9*len(a) && len(a)*10 >= 7*len(b)
}

// coverage returns the share of terms that the best hits contain.
func coverage(list []string, m *lsa, hits []Hit) float64 {
	have := map[string]bool{}
	for _, h := range hits[:min(3, len(hits))] {
		words(h.Heading+" "+h.Text+" "+h.File.Title+" "+h.File.Path, func(w string) { have[stem(w)] = true })
		words(names(h.Text), func(w string) { have[stem(w)] = true })
	}
	var all, found float64
	for _, t := range list {
		st := stem(t)
		weight := 1.0
		if m != nil {
			weight = 8 // of a word that the collection hardly has
			if i, ok := m.terms[st]; ok {
				weight = float64(m.idf[i])
			}
		}
		all += weight
		if have[st] {
			found += weight
		}
	}
	if all == 0 {
		return 0
	}
	return found / all
}

// Each calls f with each chunk of a collection, in the order of the files and their chunks. An error of f ends it.
func (s *Store) Each(ctx context.Context, c Collection, f func(Hit) error) error {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return errors.Join(err, ifNil(db))
	}
	rows, err := db.QueryContext(ctx, `SELECT path, title, size, modified, hash, seq, line, last, page, heading, text
		FROM chunk JOIN file ON file.id = chunk.file WHERE file.collection = ? ORDER BY path, seq`, c.ID)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		h, err := scanHit(rows)
		if err != nil {
			return err
		}
		if err := f(h); err != nil {
			return err
		}
	}
	return rows.Err()
}

func scanHit(row interface{ Scan(...any) error }) (h Hit, err error) {
	var modified int64
	var hash []byte
	err = row.Scan(&h.File.Path, &h.File.Title, &h.File.Size, &modified, &hash,
		&h.Chunk, &h.Line, &h.Last, &h.Page, &h.Heading, &h.Text)
	h.File.Modified, h.File.Hash, h.last = time.Unix(0, modified), string(hash), h.Chunk
	return h, err
}
