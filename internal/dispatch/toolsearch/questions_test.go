package toolsearch

import (
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// collected are the tools of packages of npm, as they listed them, with the packages' licences.
type collected struct {
	Packages []struct{ Name, Version, Licence string }
	Tools    []struct {
		Package, Name, Title, Description, Details string
		Parameters                                 []string
		Bytes                                      int // of the tool in a list
	}
}

func readCollected(t testing.TB) (c collected) {
	t.Helper()
	f, err := os.Open("testdata/tools.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

type question struct {
	text string
	want []string
}

func readQuestions(t testing.TB) (all []question) {
	t.Helper()
	b, err := os.ReadFile("testdata/questions.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		text, want, _ := strings.Cut(line, "|")
		all = append(all, question{strings.TrimSpace(text), strings.Fields(want)})
	}
	return all
}

// plain ranks by BM25 over all the text of a tool, with the same words but without fields and related words.
func plain(documents []Document) func(query string) []int {
	type counts = map[string]float64
	frequency, in := make([]counts, len(documents)), counts{}
	mean := 0.0
	for i, d := range documents {
		frequency[i] = counts{}
		text := strings.Join(append([]string{d.Package, d.Name, d.Title, d.Description, d.Details}, d.Parameters...), " ")
		for _, w := range terms(text) {
			if frequency[i][w]++; frequency[i][w] == 1 {
				in[w]++
			}
			frequency[i][""]++
		}
		mean += frequency[i][""] / float64(len(documents))
	}
	return func(query string) (order []int) {
		scores := make([]float64, len(documents))
		for _, w := range terms(query) {
			for i, f := range frequency {
				rarity := math.Log(1 + (float64(len(documents))-in[w]+0.5)/(in[w]+0.5))
				scores[i] += rarity * f[w] * 2.2 / (f[w] + 1.2*(0.25+0.75*f[""]/mean))
			}
		}
		for i, s := range scores {
			if s > 0 {
				order = append(order, i)
			}
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case scores[a] > scores[b]:
				return -1
			case scores[a] < scores[b]:
				return 1
			}
			return 0
		})
		return order[:min(5, len(order))]
	}
}

// The questions were written from the names of the tools alone. What is found must not become worse, and is better than
// what BM25 finds over the whole text.
func TestQuestions(t *testing.T) {
	c, questions := readCollected(t), readQuestions(t)
	var documents []Document
	full := 0
	for _, o := range c.Tools {
		documents = append(documents, Document{
			Name: o.Package + "_" + o.Name, Title: o.Title, Package: o.Package, Description: o.Description,
			Parameters: o.Parameters, Details: o.Details,
		})
		full += o.Bytes
	}
	x, other := New(documents), plain(documents)
	if len(documents) < 500 || len(questions) < 150 {
		t.Fatalf("%d tools and %d questions", len(documents), len(questions))
	}
	var ours, theirs, strange, oursStrange result
	for _, q := range questions {
		var found []int
		for _, h := range x.Search(q.text, 5, nil) {
			found = append(found, h.Document)
		}
		rank := func(found []int) int {
			return 1 + slices.IndexFunc(found, func(i int) bool { return slices.Contains(q.want, c.Tools[i].Name) })
		}
		ours.add(rank(found))
		theirs.add(rank(other(q.text)))
		if sharesNoWord(q, c) {
			strange.add(rank(other(q.text)))
			oursStrange.add(rank(found))
		}
		if rank(found) == 0 {
			var names []string
			for _, i := range found {
				names = append(names, c.Tools[i].Name)
			}
			t.Logf("%q: want %q, found %q", q.text, q.want, names)
		}
	}
	t.Logf("%d tools of %d packages, %d kB as a list; %d questions", len(documents), len(c.Packages), full/1000, len(questions))
	t.Logf("recall@5 and MRR: here %.3f %.3f, BM25 %.3f %.3f; of %d questions without a word of the tool: here %.3f %.3f, BM25 %.3f %.3f",
		ours.recall(), ours.mrr(), theirs.recall(), theirs.mrr(), strange.n,
		oursStrange.recall(), oursStrange.mrr(), strange.recall(), strange.mrr())
	if ours.recall() < 0.50 || ours.recall() < theirs.recall() || ours.mrr() < theirs.mrr() {
		t.Errorf("recall@5 %.3f and MRR %.3f; BM25 %.3f and %.3f", ours.recall(), ours.mrr(), theirs.recall(), theirs.mrr())
	}
}

// sharesNoWord reports whether a question has no word of the name and the description of a tool that answers it.
func sharesNoWord(q question, c collected) bool {
	words := terms(q.text)
	for _, o := range c.Tools {
		if slices.Contains(q.want, o.Name) {
			for _, w := range terms(o.Name + " " + o.Description) {
				if slices.Contains(words, w) {
					return false
				}
			}
		}
	}
	return true
}

// result counts answers by rank; rank 0 is not among the first five.
type result struct {
	n, found   int
	reciprocal float64
}

func (r *result) add(rank int) {
	r.n++
	if rank > 0 {
		r.found++
		r.reciprocal += 1 / float64(rank)
	}
}

func (r result) recall() float64 { return float64(r.found) / float64(max(1, r.n)) }
func (r result) mrr() float64    { return r.reciprocal / float64(max(1, r.n)) }
