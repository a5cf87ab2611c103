package language

import (
	_ "embed"
	"math"
	"slices"
	"strings"
	"sync"
)

//go:embed weights.txt
var weightsText string

// model says for each word which languages it speaks for, and how much.
type model struct {
	names []string
	of    map[string]string // pairs of a language and its weight, one byte each
}

const (
	absent     = -13  // the weight, in eighths, of a word for a language that never has it: log 0.2
	offset     = 16   // what the file adds to a weight so that it is a character above '0'
	perDigit   = 8    // steps of a weight per unit of the natural logarithm
	repeats    = 4    // how often one word counts
	votes      = 40.0 // words from which on more of them add no certainty
	wordsWorth = 0.25 // what words count beside clues
)

// words reads the model once, which takes some ten milliseconds.
var words = sync.OnceValue(func() *model {
	first, rest, _ := strings.Cut(weightsText, "\n")
	m := &model{
		names: append(strings.Split(first, "\t"), "Go Module", "Go Checksums", plain),
		of:    make(map[string]string, strings.Count(rest, "\n")),
	}
	for line := range strings.Lines(rest) {
		if word, pairs, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			m.of[word] = pairs
		}
	}
	return m
})

// rank orders the model's languages by what the words of a text say.
func (m *model) rank(head []byte) []Scored {
	counts := make(map[string]int)
	tokens(head, func(w string) { counts[w]++ })
	sum := make([]float64, len(m.names))
	known := 0.0
	for w, n := range counts {
		pairs, ok := m.of[w]
		if !ok {
			continue
		}
		weight := math.Log2(1 + float64(min(n, repeats)))
		known += weight
		for i := 0; i+1 < len(pairs); i += 2 {
			by := float64(int(pairs[i+1])-'0'-offset-absent) / perDigit
			sum[pairs[i]-'0'] += weight * by
		}
	}
	scale := wordsWorth
	if known > votes {
		scale *= math.Sqrt(votes / known)
	}
	for i := range sum {
		sum[i] *= scale
	}
	found := clues(head)
	for i, name := range m.names {
		sum[i] += found[name]
	}
	return m.shares(sum)
}

// shares turns sums into confidences.
func (m *model) shares(sum []float64) []Scored {
	top, total := slices.Max(sum), 0.0
	out := make([]Scored, len(sum))
	for i, s := range sum {
		p := math.Exp((s - top) / 4)
		out[i] = Scored{m.names[i], p}
		total += p
	}
	for i := range out {
		out[i].Confidence /= total
	}
	slices.SortStableFunc(out, func(a, b Scored) int { return -int(math.Copysign(1, a.Confidence-b.Confidence)) })
	return out
}
