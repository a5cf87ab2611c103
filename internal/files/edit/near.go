package edit

import "strings"

const (
	minNearScore = 0.95 // how alike a near miss has to be
	maxOtherScore  = 0.8  // how alike the next best place may be
	minNearLines  = 3    // the first and the last have to be there; something lies between
	minNearKey    = 40   // bytes; less says too little
)

// nearly finds an old text of which a few characters differ, in lines that
// stay as they are. Its first and its last line have to be there.
func (t *text) findNear(e Edit) ([]place, Level, error) {
	w, ok := newLineEdit(e.Old, e.New)
	if !ok || len(w.solid) < minNearLines || len(w.key) < minNearKey || e.All {
		return nil, 0, nil
	}
	t.prepare()
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

// nearMiss is the first line, as an index of full, of the one place that is
// near enough.
func (t *text) nearMiss(w *lineEdit) (best int, ok bool) {
	k := len(w.solid)
	keys := strings.Split(w.key, "\n")
	scores := t.resemblance(w.key, k)
	best = -1
	for a, score := range scores {
		if score >= minNearScore && t.keyOf(a) == keys[0] && t.keyOf(a+k-1) == keys[k-1] && (best < 0 || score > scores[best]) {
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

func (t *text) keyOf(i int) string {
	end := len(t.keys)
	if i+1 < len(t.starts) {
		end = t.starts[i+1]
	}
	return t.keys[t.starts[i] : end-1]
}

// resemblance tells of each run of k lines how many pairs of neighbouring
// bytes it has in common with a key, from 0 to 1. It takes one pass.
func (t *text) resemblance(key string, k int) []float64 {
	var left [1 << 16]int32 // how often a pair is still to be met; below 0 it is there too often
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
	// Each line is taken with its newline and the first byte after it, so that
	// the pairs of a run are those of its text.
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

// nearSpot makes the spot that begins at a line.
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
