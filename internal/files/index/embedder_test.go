package index

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// topics is an Embedder that knows which words mean the same.
type topics struct {
	name string
	bad  error
}

func (e topics) Space() (string, int) { return e.name, 4 }

func (e topics) Embed(_ context.Context, texts []string, _ bool) ([][]float32, error) {
	var all [][]float32
	for _, t := range texts {
		v := []float32{0, 0, 0, 0.1}
		for i, group := range []string{"car automobile vehicle engine", "soup recipe cooking dinner",
			"court judge law trial"} {
			for w := range strings.FieldsSeq(group) {
				v[i] += float32(strings.Count(strings.ToLower(t), w))
			}
		}
		all = append(all, normalise(v))
	}
	return all, e.bad
}

// A model that knows words finds what shares none with the question, and its collections are not mixed with others.
func TestAnEmbedderFindsOtherWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "i.db")
	s := Open(path, Options{Embedder: topics{name: "one"}})
	defer s.Close()
	all := texts{
		"/d/a.md": "# Garage\n\nThe vehicle stands behind the house and its engine is cold.\n",
		"/d/b.md": "# Kitchen\n\nA soup for dinner, as the recipe has it.\n",
		"/d/c.md": "# Town\n\nThe judge opened the trial.\n",
	}
	_, c, err := all.ingest(t.Context(), s, Ingest{})
	if err != nil {
		t.Fatal(err)
	}
	for question, want := range map[string]string{"automobile": "/d/a.md", "cooking": "/d/b.md", "law": "/d/c.md"} {
		a, err := s.Query(t.Context(), c, Query{Text: question})
		if err != nil || len(a.Hits) == 0 || a.Hits[0].File.Path != want {
			t.Errorf("%s: got %+v, %v", question, a.Hits, err)
		}
	}
	if c.Embedder != "one/4" {
		t.Errorf("the collection is pinned to %q", c.Embedder)
	}
	other := Open(path, Options{Embedder: topics{name: "two"}})
	defer other.Close()
	if _, err := other.Query(t.Context(), c, Query{Text: "law"}); !isPinned(err) {
		t.Errorf("a query with another model: %v", err)
	}
	if _, _, err := all.ingest(t.Context(), other, Ingest{}); !isPinned(err) {
		t.Errorf("an ingest with another model: %v", err)
	}
	broken := Open(filepath.Join(t.TempDir(), "j.db"), Options{Embedder: topics{"one", errors.New("no connection")}})
	defer broken.Close()
	if _, _, err := all.ingest(t.Context(), broken, Ingest{}); err == nil || err.Error() != "no connection" {
		t.Errorf("a model that fails: %v", err)
	}
}

func isPinned(err error) bool {
	_, is := errors.AsType[*Pinned](err)
	return is
}

// byLength is a Reranker that prefers short texts.
type byLength struct{ bad error }

func (r byLength) Rerank(_ context.Context, _ string, texts []string) (scores []float64, err error) {
	for _, t := range texts {
		scores = append(scores, -float64(len(t)))
	}
	return scores, r.bad
}

// A reranker orders what was found and may be seen; if it fails, the order of the rankings stays, and the answer says so.
func TestAReranker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "i.db")
	plain := Open(path, Options{})
	defer plain.Close()
	all := texts{
		"/d/a.md": "# Engine\n\nThe engine of the engine: engine oil and engine parts for each engine there is.\n",
		"/d/b.md": "# Other\n\nOne engine.\n",
		"/d/c.md": "# X\n\nengine\n",
	}
	_, c, err := all.ingest(t.Context(), plain, Ingest{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r Reranker, q Query) (paths []string, a Answer) {
		t.Helper()
		s := Open(path, Options{Reranker: r})
		defer s.Close()
		q.Text = "engine"
		a, err := s.Query(t.Context(), c, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range a.Hits {
			paths = append(paths, h.File.Path)
		}
		return paths, a
	}
	hidden := func(f FileInfo) bool { return f.Path != "/d/c.md" }
	if got, a := ask(byLength{}, Query{Most: 1}); len(got) != 1 || got[0] != "/d/c.md" || a.Hits[0].Rerank == nil {
		t.Errorf("got %v", got)
	}
	if got, a := ask(byLength{}, Query{Most: 1, Allow: hidden}); len(got) != 1 || got[0] != "/d/b.md" || a.Hidden != 1 {
		t.Errorf("without what the caller may not see: got %v", got)
	}
	before, _ := ask(nil, Query{Most: 3})
	if got, a := ask(byLength{errors.New("down")}, Query{Most: 3}); strings.Join(got, " ") != strings.Join(before, " ") ||
		a.Unranked == nil {
		t.Errorf("a reranker that fails: got %v, %v, want %v", got, a.Unranked, before)
	}
	if got, a := ask(byLength{}, Query{Most: 3, Mode: Lexical}); strings.Join(got, " ") == "" || a.Hits[0].Rerank != nil {
		t.Errorf("words alone: got %v", got)
	}
}
