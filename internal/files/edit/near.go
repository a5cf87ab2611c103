package edit

import "strings"

const (
	minNearScore  = 0.95 // resemblance of a near miss, at least
	maxOtherScore = 0.8  // resemblance of any other place, at most
	minNearLines  = 3    // the first, the last, and one between them
	minNearKey    = 40   // bytes; a shorter key is too often near by chance
)

// findNear finds an old text in which a few characters differ from the file, in
// lines that the edit keeps. The first and the last line must be equal.
func (t *text) findNear(e Edit) ([]place, Level, error) {
	w, ok := newLineEdit(e.Old, e.New)
	if !ok || len(w.solid) < minNearLines || len(w.key) < minNearKey || e.All {
		return nil, 0, nil
	}
	t.splitOnce()
	a, ok := t.nearMiss(&w)
	if !ok {
		return nil, 0, nil
	}
	s := t.nearCandidate(&w, a)
	if s == nil {
		return nil, 0, nil
	}
	p, err := t.project(&w, s)
	if err != nil {
		return nil, 0, err
	}
	return []place{p}, Near, nil
}

// nearMiss returns the first line, as an index of full, of the only place that
// is near enough.
func (t *text) nearMiss(w *lineEdit) (best int, ok bool) {
	k := len(w.solid)
	keys := strings.Split(w.key, "\n")
	scores := t.resemblance(w.key, k)
	best = -1
	for a, score := range scores {
		if score >= minNearScore && t.keyOf(a) == keys[0] && t.keyOf(a+k-1) == keys[k-1] &&
			(best < 0 || score > scores[best]) {
			best = a
		}
	}
	if best < 0 {
		return 0, false
	}
	for a, score := range scores {
		if score > maxOtherScore && abs(a-best) > k/2 {
			return 0, false
		}
	}
	return best, true
}

// keyOf returns the key of a line, given as an index of full.
func (t *text) keyOf(i int) string {
	end := len(t.keys)
	if i+1 < len(t.starts) {
		end = t.starts[i+1]
	}
	return t.keys[t.starts[i] : end-1]
}

// resemblance returns for each run of k lines the share of neighbouring byte
// pairs that it has in common with a key, from 0 to 1. It takes one pass over
// the file.
func (t *text) resemblance(key string, k int) []float64 {
	var left [1 << 16]int32 // how many more of a pair the key has than the run
	for i := range len(key) - 1 {
		left[int(key[i])<<8|int(key[i+1])]++
	}
	shared := 0
	add := func(s string) {
		for i := range len(s) - 1 {
			p := &left[int(s[i])<<8|int(s[i+1])]
			if *p > 0 {
				shared++
			}
			*p--
		}
	}
	drop := func(s string) {
		for i := range len(s) - 1 {
			p := &left[int(s[i])<<8|int(s[i+1])]
			if *p++; *p > 0 {
				shared--
			}
		}
	}
	n := len(t.starts) - k + 1
	if n <= 0 {
		return nil
	}
	// A piece has the newline and the first byte after it too, so that the pairs
	// of a run are those of its text.
	piece := func(i int) string {
		return t.keys[t.starts[i]:min(t.starts[i]+len(t.keyOf(i))+2, len(t.keys))]
	}
	scores := make([]float64, n)
	for i := range k - 1 {
		add(piece(i))
	}
	for a := range n {
		add(t.keyOf(a + k - 1))
		size := t.starts[a+k-1] + len(t.keyOf(a+k-1)) - t.starts[a]
		scores[a] = 2 * float64(shared) / float64(len(key)+size-2)
		drop(t.keyOf(a + k - 1))
		add(piece(a + k - 1))
		drop(piece(a))
	}
	return scores
}

// nearCandidate makes the candidate that begins at a line. It returns nil if its
// indentation does not fit.
func (t *text) nearCandidate(w *lineEdit, a int) *candidate {
	k := len(w.solid)
	s := &candidate{first: t.full[a], level: Near, of: make([]int, len(w.old))}
	s.lines = append(s.lines, t.lines[t.full[a]:t.full[a+k-1]+1]...)
	for i := range s.of {
		s.of[i] = -1
	}
	for i, o := range w.solid {
		s.of[o] = t.full[a+i] - s.first
	}
	if !w.endsLine {
		l := &s.lines[len(s.lines)-1]
		l.trail, l.eol = "", ""
	}
	s.matchBlanks(w)
	t.growBlanks(w, s)
	var list []indents
	for _, o := range w.solid {
		list = append(list, pairOf(w.old[o].indent, s.lines[s.of[o]].indent, o == w.solid[0]))
	}
	if _, ok := s.shift.learn(list, t.unit); !ok {
		return nil
	}
	s.start = s.lines[0].at
	s.ended = w.old[len(w.old)-1].eol != ""
	return s
}
