package index

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// A collection is tuned on questions made of its own headings and comments: each is a question whose answer is the
// text below it. The rankings are computed without the heading itself, because it would make the answer trivial.
const (
	tuneChunks    = 4000 // that are ranked
	tuneQuestions = 400
	tuneLeast     = 20 // questions below which the default is kept
	tuneSteps     = 10 // weights that are tried, from 0 to 1
	tuneTop       = 10 // a rank beyond this counts as not found
	// tuneDiscount is applied to the weight that was best, because the model was made of the headings, too: it finds
	// them more easily than what it has not seen.
	tuneDiscount = 0.8
)

// neighboursAt returns the weight of similar passages where the vectors have a weight: the more they are worth in a
// collection, the more is their similarity.
func neighboursAt(weight float64) float64 { return min(4*weight*weight*weight, 0.5) }

// trial is a chunk without its heading, and the heading.
type trial struct{ question, body string }

// tune measures how to combine the rankings of a collection, and stores it.
func (s *Store) tune(ctx context.Context, c Collection, m *lsa) error {
	if m == nil {
		return nil
	}
	list, err := sample(ctx, s, c, tuneChunks, newTrial)
	if err != nil {
		return err
	}
	t := newTuner(list, m).tune()
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "UPDATE model SET tuned = ? WHERE collection = ?", string(text), c.ID)
	return err
}

// newTrial returns a chunk to be found; question is "" if there is nothing to ask for. It takes the last heading, or else the comment at the beginning, out of a chunk.
func newTrial(title, heading, text string) (t trial) {
	if i := strings.LastIndex(heading, " > "); i >= 0 {
		heading = heading[i+3:]
	}
	heading = cmp.Or(heading, title)
	var comment []string
	var body strings.Builder
	inComment, hasHeading := true, false
	for line := range strings.Lines(text) {
		bare := strings.TrimSpace(line)
		switch {
		case heading != "" && strings.TrimSpace(strings.TrimLeft(bare, "#")) == heading:
			hasHeading = true
			inComment = false
		case inComment && bare != "" && !strings.HasPrefix(bare, "# ") && isAttached([]byte(bare)):
			comment = append(comment, strings.Trim(bare, "/*#-; "))
		default:
			inComment = inComment && bare == ""
			body.WriteString(line)
		}
	}
	t.body = body.String()
	if hasHeading {
		t.question = heading
	} else {
		t.question = strings.Join(comment, " ")
	}
	if len(terms(t.question)) < 3 || len(t.body) < 100 {
		t.question, t.body = "", text
	}
	return t
}

// tuner ranks the bodies of trials.
type tuner struct {
	list     []trial
	model    *lsa
	vectors  [][]float32
	postings map[string][]posting
	length   []float64
	average  float64
}

type posting struct {
	at    int
	count float64
}

func newTuner(list []trial, m *lsa) *tuner {
	t := &tuner{list: list, model: m, postings: map[string][]posting{}, length: make([]float64, len(list))}
	bodies := make([]string, len(list))
	for i, one := range list {
		bodies[i] = one.body
		count := map[string]float64{}
		stems(one.body, func(s string) {
			count[s]++
			t.length[i]++
		})
		for s, n := range count {
			t.postings[s] = append(t.postings[s], posting{i, n})
		}
		t.average += t.length[i] / float64(len(list))
	}
	t.vectors = m.embed(bodies)
	return t
}

// tune tries the weights.
func (t *tuner) tune() Tuning {
	ranks := make([]float64, tuneSteps+1) // sums of reciprocal ranks
	var asked []int
	for i := range t.list {
		if t.list[i].question != "" {
			asked = append(asked, i)
		}
	}
	step := max(1, len(asked)/tuneQuestions) // each becomes three questions
	type trial struct {
		question string
		target   int
	}
	var trials []trial
	for k := 0; k < len(asked); k += step {
		for each := 2; each <= 4; each++ {
			trials = append(trials, trial{shorten(t.list[asked[k]].question, each), asked[k]})
		}
	}
	n := len(trials)
	var sums [2][tuneSteps + 1]float64
	halves(n, func(half, from, to int) {
		e := t.model.embedding()
		for _, one := range trials[from:to] {
			words, vecs := t.byWords(one.question), t.byVectors(e, one.question)
			for w := range sums[half] {
				sums[half][w] += reciprocal(words, vecs, float64(w)/tuneSteps, one.target)
			}
		}
	})
	for w := range ranks {
		ranks[w] = sums[0][w] + sums[1][w]
	}
	out := Tuning{Weight: defaultWeight, Neighbours: neighboursAt(defaultWeight), Queries: n}
	if n < tuneLeast {
		out.Queries = 0
		return out
	}
	best := 0
	for w := range ranks {
		ranks[w] /= float64(n)
		if ranks[w] > ranks[best] {
			best = w
		}
	}
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	out.Weight = round(tuneDiscount * float64(best) / tuneSteps)
	out.Neighbours = round(neighboursAt(out.Weight))
	out.Score, out.Words, out.Vectors = round(ranks[best]), round(ranks[0]), round(ranks[tuneSteps])
	return out
}

// byWords returns the BM25 of each body, with the parameters of FTS5.
func (t *tuner) byWords(question string) []float64 {
	const k1, b = 1.2, 0.75
	scores := make([]float64, len(t.list))
	for _, w := range terms(question) {
		found := t.postings[stem(w)]
		idf := math.Log((float64(len(t.list)-len(found)) + 0.5) / (float64(len(found)) + 0.5))
		if idf <= 0 {
			continue
		}
		for _, p := range found {
			scores[p.at] += idf * p.count * (k1 + 1) / (p.count + k1*(1-b+b*t.length[p.at]/t.average))
		}
	}
	return scores
}

func (t *tuner) byVectors(e *embedding, question string) []float64 {
	q := e.of(question)
	scores := make([]float64, len(t.list))
	for i, v := range t.vectors {
		scores[i] = product(q, v)
	}
	return scores
}

func product(a, b []float32) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return float64(s0 + s1 + s2 + s3)
}

// reciprocal returns 1 divided by the rank of a target.
func reciprocal(words, vecs []float64, weight float64, target int) float64 {
	mostWords, mostVecs := slices.Max(words), slices.Max(vecs)
	score := func(i int) (s float64) {
		if mostWords > 0 {
			s = (1 - weight) * words[i] / mostWords
		}
		if mostVecs > 0 {
			s += weight * max(vecs[i], 0) / mostVecs
		}
		return s
	}
	own, rank := score(target), 1
	for i := range words {
		if i != target && score(i) >= own {
			if rank++; rank > tuneTop {
				return 0
			}
		}
	}
	return 1 / float64(rank)
}

// shorten keeps each n-th word. Headings are answered by their text in the same words: all of them would be found by
// words alone, and nothing would be learned from it.
func shorten(question string, n int) string {
	var kept []string
	for i, w := range terms(question) {
		if i%n == 0 {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}
