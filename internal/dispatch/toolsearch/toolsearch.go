// Package toolsearch finds tools by what a caller wants to do: it ranks their names, titles, descriptions, parameters
// and packages by the words of a query.
//
// The ranking is BM25F (Robertson and Zaragoza, 2009): the occurrences of a word in the fields of a tool are added
// with a weight for each field before they saturate. Words are stemmed, and a table adds what other words a request
// may use for the same thing. It is deterministic and needs neither a model nor the network.
package toolsearch

import (
	"math"
	"slices"
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

// Parameters of BM25F, as they are usual; they were not fitted to the questions of testdata.
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

// posting is a document that contains a word, with the weighted frequency.
type posting struct {
	document  int32
	frequency float32
}

// Index is an immutable index of tools. It is safe for concurrent use.
type Index struct {
	documents int
	postings  map[string][]posting
}

// New indexes documents.
func New(documents []Document) *Index {
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
		for w, n := range weights {
			x.postings[w] = append(x.postings[w], posting{int32(i), float32(n)})
		}
	}
	return x
}

// Search returns the documents that fit a query best, at most limit, which is at least 1, the best first. boost, if it is not nil, is
// what the score of a document is multiplied with.
func (x *Index) Search(query string, limit int, boost func(document int) float64) []Hit {
	scores := make([]float64, x.documents)
	words := terms(query)
	if len(words) > mostTerms {
		words = words[:mostTerms]
	}
	slices.Sort(words)
	words = slices.Compact(words)
	weights := map[string]float64{}
	for _, w := range words {
		for _, other := range relatedTo[w] {
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
			n := float64(p.frequency)
			scores[p.document] += weights[w] * rarity * n / (saturation + n)
		}
	}
	var hits []Hit // the best so far, the best first
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
