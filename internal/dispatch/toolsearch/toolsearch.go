// Package toolsearch finds tools by what a caller wants to do: it ranks their names, titles, descriptions, parameters
// and packages by the words of a query.
//
// The ranking is BM25F (Robertson and Zaragoza, 2009): the occurrences of a word in the fields of a tool are added
// with a weight for each field before they saturate. Words are stemmed, and two tables add what other words a request
// may use for the same thing: one of synonyms, and one of what people say who want what a tool's words name. A table of
// vectors of words adds how much the meanings are alike. It is deterministic and needs neither a model nor the network.
package toolsearch

import (
	"math"
	"slices"
	"sync/atomic"
)

// Document is what is known of one tool.
type Document struct {
	Name, Title, Package, Description string
	Aliases                           []string
	Parameters                        []string // names
	Details                           string   // the descriptions of the parameters
}

// Hit is one result: the number of a document, and how well it fits.
type Hit struct {
	Document int
	Score    float64
}

// Parameters of BM25F, as they are usual.
const (
	saturation = 1.2 // k1: how soon further occurrences stop to count
	related    = 0.3 // the weight of a word that the table adds
	// mostTerms limits the words of a query that are looked at, so that its time is limited.
	mostTerms = 48
)

// field is one part of a document.
type field struct {
	weight float64
	length float64 // b: from 0, a long text counts as a short one, to 1
	text   func(*Document) []string
}

var fields = []field{
	{4, 0.4, func(d *Document) []string { return append([]string{d.Name}, d.Aliases...) }},
	{3, 0.4, func(d *Document) []string { return []string{d.Title} }},
	{1.5, 0.2, func(d *Document) []string { return []string{d.Package} }},
	{2, 0.6, func(d *Document) []string { return []string{d.Description} }},
	{1, 0.6, func(d *Document) []string { return d.Parameters }},
	{0.4, 0.7, func(d *Document) []string { return []string{d.Details} }},
}

// The words of phrases.txt are a field of their own, whose weights depend on where their key is.
const (
	phraseInName  = 1.8
	phraseInText  = 0.3
	phraseLength  = 0.4 // b
	phraseReached = 300 // bytes of a description in which keys are looked for
)

// posting is a document that contains a word, with the part of its score that does not depend on other documents.
type posting struct {
	document int32
	score    float32
}

// Index is an index of tools, which is immutable but for what a Model adds. It is safe for concurrent use.
type Index struct {
	documents int
	postings  map[string][]posting
	dims      int
	vectors   []float32 // of the documents, one after the other; none if dims is 0

	model atomic.Pointer[modelVectors] // nil until a Model has made them
}

// parts says what an index uses besides the words of its documents. Tests compare indexes without them.
type parts struct{ phrases, vectors bool }

// New indexes documents.
func New(documents []Document) *Index { return newIndex(documents, parts{true, true}) }

func newIndex(documents []Document, use parts) *Index {
	x := &Index{documents: len(documents), postings: map[string][]posting{}}
	counts := make([][]map[string]float64, len(documents)) // by document and field
	var mean [16]float64
	for i := range documents {
		counts[i] = make([]map[string]float64, len(fields))
		for f := range fields {
			words := map[string]float64{}
			for _, text := range fields[f].text(&documents[i]) {
				for _, w := range terms(text) {
					words[w]++
				}
			}
			for _, n := range words {
				mean[f] += n
			}
			counts[i][f] = words
		}
	}
	phrased, phraseMean := make([]map[string]float64, len(documents)), 0.0
	for i := range documents {
		if !use.phrases {
			break
		}
		phrased[i] = phraseWords(&documents[i])
		for _, n := range phrased[i] {
			phraseMean += n / float64(len(documents))
		}
	}
	for f := range fields {
		mean[f] = max(mean[f]/float64(max(1, len(documents))), 1)
	}
	for i := range documents {
		weights := map[string]float64{}
		for f := range fields {
			length := 0.0
			for _, n := range counts[i][f] {
				length += n
			}
			by := fields[f].weight / (1 - fields[f].length + fields[f].length*length/mean[f])
			for w, n := range counts[i][f] {
				weights[w] += by * n
			}
		}
		if phraseMean > 0 {
			length := 0.0
			for _, n := range phrased[i] {
				length += n
			}
			by := 1 / (1 - phraseLength + phraseLength*length/phraseMean)
			for w, n := range phrased[i] {
				weights[w] += by * n
			}
		}
		for w, n := range weights {
			x.postings[w] = append(x.postings[w], posting{int32(i), float32(n / (saturation + n))})
		}
	}
	if use.vectors {
		x.dims = openTable().dims
		x.vectors = make([]float32, len(documents)*x.dims)
		for i := range documents {
			copy(x.vectors[i*x.dims:], vectorOf(&documents[i]))
		}
	}
	return x
}

// Search returns the documents that fit a query best, at most limit, which is at least 1, the best first. boost, if it
// is not nil, is what the score of a document is multiplied with.
func (x *Index) Search(query string, limit int, boost func(document int) float64) []Hit {
	return best(x.score(query), limit, boost)
}

// score returns how well each document fits a query.
func (x *Index) score(query string) []float64 {
	scores := make([]float64, x.documents)
	words := terms(query)
	if len(words) > mostTerms {
		words = words[:mostTerms]
	}
	slices.Sort(words)
	words = slices.Compact(words)
	weights := map[string]float64{}
	for _, w := range words {
		for _, other := range relatedTo()[w] {
			weights[other] = max(weights[other], related)
		}
	}
	for _, w := range words {
		weights[w] = 1
	}
	order := make([]string, 0, len(weights))
	for w := range weights {
		order = append(order, w)
	}
	slices.Sort(order) // floating-point sums depend on the order
	for _, w := range order {
		list := x.postings[w]
		rarity := math.Log(1 + (float64(x.documents)-float64(len(list))+0.5)/(float64(len(list))+0.5))
		for _, p := range list {
			scores[p.document] += weights[w] * rarity * float64(p.score)
		}
	}
	x.addMeaning(scores, words)
	return scores
}

// best returns the documents with the highest scores, the best first.
func best(scores []float64, limit int, boost func(document int) float64) (hits []Hit) {
	for i, score := range scores {
		if score <= 0 {
			continue
		}
		if boost != nil {
			score *= boost(i)
		}
		if len(hits) == limit && score <= hits[limit-1].Score {
			continue
		}
		at, _ := slices.BinarySearchFunc(hits, score, func(h Hit, score float64) int {
			if h.Score >= score {
				return -1
			}
			return 1
		})
		if hits = slices.Insert(hits, at, Hit{i, score}); len(hits) > limit {
			hits = hits[:limit]
		}
	}
	return hits
}
