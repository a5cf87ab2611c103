package toolsearch

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// collected are tools and what is asked of them.
type collected struct {
	Tools []struct {
		Package, Name, Title, Description, Details string
		Parameters                                 []string
		Bytes                                      int // of the tool in a list
	}
	Questions []question
}

type question struct {
	Text string
	Want []string // names of tools, any of which answers
}

func (c *collected) documents() (all []Document) {
	for _, o := range c.Tools {
		name := o.Name
		if o.Package != "" {
			name = o.Package + "_" + o.Name // as the host names it
		}
		all = append(all, Document{
			Name: name, Title: o.Title, Package: o.Package, Description: o.Description,
			Parameters: o.Parameters, Details: o.Details,
		})
	}
	return all
}

func readCollected(t testing.TB, name string) (c collected) {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".json.gz")
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
		text := strings.Join(append([]string{d.Package, d.Name, d.Title, d.Description, d.Details}, d.Parameters...),
			" ")
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

// ranking returns the documents that answer a question, the best first.
type ranking func(question string) []int

func (x *Index) ranking(question string) (found []int) {
	for _, h := range x.Search(question, 5, nil) {
		found = append(found, h.Document)
	}
	return found
}

// score asks all questions. strange are those without a word of the name and the description of a tool that answers.
func (c *collected) score(rank ranking, missed func(q question, found []string)) (all, strange result) {
	for _, q := range c.Questions {
		found := rank(q.Text)
		at := 1 + slices.IndexFunc(found, func(i int) bool { return slices.Contains(q.Want, c.Tools[i].Name) })
		all.add(at)
		if sharesNoWord(q, c) {
			strange.add(at)
		}
		if at == 0 && missed != nil {
			var names []string
			for _, i := range found {
				names = append(names, c.Tools[i].Name)
			}
			missed(q, names)
		}
	}
	return all, strange
}

// What is found must not become worse than it was, and is better than what BM25 finds over the whole text.
func TestQuestions(t *testing.T) {
	for _, set := range []struct {
		name   string
		recall float64
	}{
		{"tools", 0.91},
		{"livemcpbench", 0.71},
		{"metatool", 0.71},
	} {
		c := readCollected(t, set.name)
		if set.name == "tools" {
			c.Questions = readQuestions(t)
		}
		documents := c.documents()
		bytes := 0
		for _, o := range c.Tools {
			bytes += o.Bytes
		}
		t.Logf("%s: %d tools, %d kB as a list, %d questions", set.name, len(c.Tools), bytes/1000, len(c.Questions))
		words, wordsStrange := c.score(plain(documents), nil)
		t.Logf("  BM25:            %s; without a common word: %s", words, wordsStrange)
		for _, use := range []parts{{}, {vectors: true}, {phrases: true}} {
			some, strange := c.score(newIndex(documents, use).ranking, nil)
			t.Logf("  fields, %+v: %s; without a common word: %s", use, some, strange)
		}
		ours, oursStrange := c.score(New(documents).ranking, func(q question, found []string) {
			if set.name == "tools" {
				t.Logf("%q: want %q, found %q", q.Text, q.Want, found)
			}
		})
		t.Logf("  all:             %s; without a common word: %s", ours, oursStrange)
		if ours.recall() < set.recall || ours.recall() < words.recall() || ours.mrr() < words.mrr() {
			t.Errorf("%s: recall@5 and MRR %s; BM25 %s", set.name, ours, words)
		}
	}
}

// sharesNoWord reports whether a question has no word of the name and the description of a tool that answers it.
func sharesNoWord(q question, c *collected) bool {
	words := terms(q.Text)
	for _, o := range c.Tools {
		if slices.Contains(q.Want, o.Name) {
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

func (r result) String() string { return fmt.Sprintf("%.3f %.3f (%d)", r.recall(), r.mrr(), r.n) }
