package index

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// collections has documents, questions and judgements in the form of BEIR: corpus.jsonl.gz, queries.jsonl.gz and
// qrels.tsv.gz in a folder for each collection.
const collections = "../../../bench/testdata"

type testDocument struct {
	ID    string `json:"_id"`
	Title string `json:"title"`
	Text  string `json:"text"`
}

func readLines[T any](t testing.TB, path string) (all []T) {
	lines := bufio.NewScanner(bytes.NewReader(readCompressed(t, path)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

func readCompressed(t testing.TB, path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type judged struct {
	questions []testDocument
	relevant  map[string]map[string]bool
}

func readJudgements(t testing.TB, dir string) judged {
	j := judged{readLines[testDocument](t, filepath.Join(dir, "queries.jsonl.gz")), map[string]map[string]bool{}}
	b := readCompressed(t, filepath.Join(dir, "qrels.tsv.gz"))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[2] != "0" {
			if j.relevant[f[0]] == nil {
				j.relevant[f[0]] = map[string]bool{}
			}
			j.relevant[f[0]][f[1]] = true
		}
	}
	return j
}

func ingestDocuments(t testing.TB, s *Store, name string, docs []testDocument) (Report, Collection) {
	texts := map[string][]byte{}
	in := Ingest{Owner: "ann/lab", Name: name, Below: "/" + name}
	for _, d := range docs {
		path := "/" + name + "/" + d.ID + ".md"
		texts[path] = []byte("# " + d.Title + "\n\n" + d.Text + "\n")
		in.Items = append(in.Items, Item{Path: path, Size: int64(len(texts[path])), Modified: time.Unix(1, 0)})
	}
	in.Read = func(_ context.Context, it Item) (Document, error) {
		return Document{Text: texts[it.Path], Language: "markdown", Hash: sha256.Sum256(texts[it.Path])}, nil
	}
	r, c, err := s.Ingest(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return r, c
}

func ndcg(ranked []string, relevant map[string]bool) float64 {
	var got, ideal float64
	for i := range 10 {
		if i < len(ranked) && relevant[ranked[i]] {
			got += 1 / math.Log2(float64(i+2))
		}
		if i < len(relevant) {
			ideal += 1 / math.Log2(float64(i+2))
		}
	}
	return got / ideal
}

// TestRelevance measures nDCG@10 on public collections.
func TestRelevance(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("GATEHOUSE_TEST_ALL is not set; it takes a minute")
	}
	MeasureRelevance(t, nil, map[string]float64{"scifact": .70, "cranfield": 0})
}

// MeasureRelevance measures nDCG@10 on public collections, and fails if it is below what is wanted of one.
func MeasureRelevance(t *testing.T, model Embedder, want map[string]float64) {
	var auto float64
	fixed := make([]float64, 11) // by ten times the weight
	for _, name := range slices.Sorted(maps.Keys(want)) {
		s := Open("", Options{Embedder: model})
		defer s.Close()
		began := time.Now()
		r, c := ingestDocuments(t, s, name,
			readLines[testDocument](t, filepath.Join(collections, name, "corpus.jsonl.gz")))
		took := time.Since(began)
		j := readJudgements(t, filepath.Join(collections, name))
		tuned, err := tuningOf(t, s, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d files, %d chunks in %v; tuned %+v", name, r.Files, r.Chunks, took.Round(time.Millisecond),
			*tuned)
		for _, mode := range []Mode{Lexical, Vector} {
			t.Logf("  %s %.4f", mode, meanNDCG(t, s, c, j, mode))
		}
		own := meanNDCG(t, s, c, j, Auto)
		auto += own / float64(len(want))
		t.Logf("  auto %.4f", own)
		if own < want[name] {
			t.Errorf("nDCG@10 on %s is %.4f, want at least %.4f", name, own, want[name])
		}
		for i := range fixed {
			got := weightedNDCG(t, s, c, j, float64(i)/10)
			t.Logf("  weight %.1f: %.4f", float64(i)/10, got)
			fixed[i] += got / float64(len(want))
		}
	}
	t.Logf("mean: auto %.4f, best fixed weight %.4f", auto, slices.Max(fixed))
}

func tuningOf(t testing.TB, s *Store, c Collection) (*Tuning, error) {
	db, err := s.file.Reader()
	if err != nil {
		return nil, err
	}
	return readTuning(t.Context(), db, c.ID)
}

func meanNDCG(t testing.TB, s *Store, c Collection, j judged, mode Mode) float64 {
	var sum float64
	n := 0
	for _, q := range j.questions {
		if len(j.relevant[q.ID]) == 0 {
			continue
		}
		a, err := s.Query(t.Context(), c, Query{Text: q.Text, Most: 10, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		var ranked []string
		for _, h := range a.Hits {
			if id := strings.TrimSuffix(filepath.Base(h.File.Path), ".md"); !slices.Contains(ranked, id) {
				ranked = append(ranked, id)
			}
		}
		sum += ndcg(ranked, j.relevant[q.ID])
		n++
	}
	return sum / float64(n)
}

func weightedNDCG(t testing.TB, s *Store, c Collection, j judged, weight float64) float64 {
	var sum float64
	n := 0
	c, err := s.Find(t.Context(), c.Owner, "", c.Name)
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.loadVectors(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range j.questions {
		if len(j.relevant[q.ID]) == 0 {
			continue
		}
		list, err := s.rank(t.Context(), c, v, &Tuning{Weight: weight}, Query{Text: q.Text, Mode: Auto}, terms(q.Text))
		if err != nil {
			t.Fatal(err)
		}
		hits, _, err := s.collect(t.Context(), c, Query{Most: 10}, list)
		if err != nil {
			t.Fatal(err)
		}
		var ranked []string
		for _, h := range hits {
			if id := strings.TrimSuffix(filepath.Base(h.File.Path), ".md"); !slices.Contains(ranked, id) {
				ranked = append(ranked, id)
			}
		}
		sum += ndcg(ranked, j.relevant[q.ID])
		n++
	}
	return sum / float64(n)
}
