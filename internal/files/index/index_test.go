package index

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// texts are files by their paths.
type texts map[string]string

// ingest brings the collection "c" of ann up to date with the texts.
func (all texts) ingest(ctx context.Context, s *Store, o Ingest) (Report, Collection, error) {
	o.Owner, o.Name, o.Below = "ann/lab", "c", "/d"
	for path, text := range all {
		sum := sha256.Sum256([]byte(text)) // a change of the text changes the time
		o.Items = append(o.Items, Item{path, int64(len(text)), time.Unix(int64(sum[0])<<8+int64(sum[1]), 0)})
	}
	slices.SortFunc(o.Items, func(a, b Item) int { return strings.Compare(a.Path, b.Path) })
	if o.Read == nil {
		o.Read = func(_ context.Context, it Item) (Document, error) {
			text := all[it.Path]
			return Document{[]byte(text), "markdown", sha256.Sum256([]byte(text))}, nil
		}
	}
	return s.Ingest(ctx, o)
}

func find(t *testing.T, s *Store, c Collection, question string) (paths []string) {
	t.Helper()
	a, err := s.Query(t.Context(), c, Query{Text: question, Most: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range a.Hits {
		paths = append(paths, h.File.Path)
	}
	return paths
}

func TestStemsAreThoseOfPorter(t *testing.T) {
	for word, want := range map[string]string{
		"caresses": "caress", "ponies": "poni", "cats": "cat", "feed": "feed", "agreed": "agre", "plastered": "plaster",
		"motoring": "motor", "sing": "sing", "conflated": "conflat", "troubled": "troubl", "sized": "size",
		"hopping": "hop", "falling": "fall", "hissing": "hiss", "failing": "fail", "filing": "file", "happy": "happi",
		"sky": "sky", "relational": "relat", "conditional": "condit", "rational": "ration", "digitizer": "digit",
		"operator": "oper", "feudalism": "feudal", "hopefulness": "hope", "formaliti": "formal",
		"triplicate": "triplic",
		"electrical": "electr", "goodness": "good", "revival": "reviv", "allowance": "allow", "replacement": "replac",
		"adoption": "adopt", "activate": "activ", "effective": "effect", "probate": "probat", "rate": "rate",
		"cease": "ceas", "controlling": "control", "roll": "roll", "is": "is", "höhe": "höhe", "b2b": "b2b",
	} {
		if got := stem(word); got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
}

func TestChunksEndAtHeadingsAndDefinitions(t *testing.T) {
	var md strings.Builder
	for i := range 4 {
		fmt.Fprintf(&md, "# Part %d\n\n%s\n\n## Detail\n\n%s\n", i, strings.Repeat("words of it. ", 30),
			strings.Repeat("more. ", 90))
	}
	all := Cut("markdown", []byte(md.String()))
	line := 1
	for _, c := range all {
		if c.Line < line || c.Last < c.Line || len(c.Text) > chunkMost || !strings.HasPrefix(c.Text, "#") {
			t.Errorf("a chunk has lines %d to %d, %d bytes: %.40q", c.Line, c.Last, len(c.Text), c.Text)
		}
		if got := strings.Count(c.Text, "\n"); got != c.Last-c.Line {
			t.Errorf("a chunk of lines %d to %d has %d line breaks", c.Line, c.Last, got)
		}
		line = c.Last + 1
	}
	if len(all) < 4 || all[len(all)-1].Heading == "" || !strings.Contains(all[1].Heading, "Part") {
		t.Errorf("got %d chunks: %+v", len(all), all)
	}
	source := "package a\n\n" + strings.Repeat("// A does it.\nfunc (x *T) A(n int) int {\n\treturn n + 1 // "+
		strings.Repeat("it is so ", 60)+"\n}\n\n", 5)
	for i, c := range Cut("go", []byte(source)) {
		if i > 0 && (!strings.HasPrefix(c.Text, "// A does it.") || c.Heading != "func (x *T) A(n int) int") {
			t.Errorf("chunk %d is %+v", i, c)
		}
	}
	long := Cut("plaintext", []byte(strings.Repeat("ä sentence without an end ", 1000)))
	for _, c := range long {
		if c.Line != 1 || c.Last != 1 || len(c.Text) > chunkMost || strings.Contains(c.Text, "\uFFFD") {
			t.Errorf("got %d bytes of lines %d to %d", len(c.Text), c.Line, c.Last)
		}
	}
	if len(long) < 9 {
		t.Errorf("a long line became %d chunks", len(long))
	}
	if pages := Cut("plaintext", []byte("[page 1]\none\n"+strings.Repeat("x\n", 300)+"[page 2]\ntwo\n")); len(
		pages,
	) != 2 ||
		pages[1].Page != 2 {
		t.Errorf("got %+v", pages)
	}
}

// Words that never stand together are related because they stand with the same others.
func TestMeaningFindsWhatWordsDoNot(t *testing.T) {
	topics := [][]string{
		strings.Fields("sea vessel ship harbour anchor deck mast sail crew cargo tide rope keel"),
		strings.Fields("cake flour sugar oven butter dough bake cream icing whisk vanilla sponge layer"),
		strings.Fields("law court judge appeal verdict plaintiff statute clause ruling witness oath jury bail"),
	}
	rng := rand.New(rand.NewPCG(1, 1))
	all := texts{}
	for _, list := range topics {
		topic, list := list[0], list[1:]
		for i := range 60 {
			picked := map[string]bool{}
			for len(picked) < 6 {
				w := list[rng.IntN(len(list))]
				picked[w] = w != "ship" || !picked["vessel"]
				if w == "vessel" {
					delete(picked, "ship")
				}
			}
			var text []string
			for w, in := range picked {
				if in {
					text = append(text, w)
				}
			}
			slices.Sort(text)
			all[fmt.Sprintf("/d/%s%d.md", topic, i)] = strings.Join(text, " ")
		}
	}
	s := Open("", Options{})
	defer s.Close()
	r, c, err := all.ingest(t.Context(), s, Ingest{})
	if err != nil || !r.Trained {
		t.Fatal(r, err)
	}
	a, err := s.Query(t.Context(), c, Query{Text: "vessel", Most: 30, Mode: Vector})
	if err != nil {
		t.Fatal(err)
	}
	without := 0
	for _, h := range a.Hits {
		if !strings.Contains(h.File.Path, "sea") {
			t.Errorf("%s is found for vessel, with %.2f", h.File.Path, h.Vectors)
		}
		if !strings.Contains(h.Text, "vessel") {
			without++
		}
	}
	if len(a.Hits) < 30 || without == 0 {
		t.Errorf("of %d hits %d do not have the word", len(a.Hits), without)
	}
	if paths := find(t, s, c, "verdict"); !strings.Contains(paths[0], "law") {
		t.Errorf("got %v", paths)
	}
}

func TestACollectionStaysWithItsEmbedder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "i.db")
	all := texts{"/d/a.md": "anchor", "/d/b.md": "cake"}
	s := Open(path, Options{})
	_, c, err := all.ingest(t.Context(), s, Ingest{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = Open(path, Options{Embedder: letters{}})
	defer s.Close()
	pinned := &Pinned{}
	if _, err := s.Query(t.Context(), c, Query{Text: "anchor"}); !errors.As(err, &pinned) {
		t.Errorf("a query with another embedder gave %v", err)
	}
	if _, _, err := all.ingest(t.Context(), s, Ingest{}); !errors.As(err, &pinned) ||
		!strings.Contains(err.Error(), "letters/26") {
		t.Errorf("an ingest with another embedder gave %v", err)
	}
	if _, c, err = all.ingest(t.Context(), s, Ingest{Recreate: true}); err != nil {
		t.Fatal(err)
	}
	if paths := find(t, s, c, "anchors"); len(paths) == 0 || paths[0] != "/d/a.md" {
		t.Errorf("got %v", paths)
	}
}

// letters counts letters.
type letters struct{}

func (letters) Space() (string, int) { return "letters", 26 }

func (letters) Embed(_ context.Context, all []string, _ bool) ([][]float32, error) {
	out := make([][]float32, len(all))
	for i, text := range all {
		out[i] = make([]float32, 26)
		for _, r := range text {
			if r >= 'a' && r <= 'z' {
				out[i][r-'a']++
			}
		}
		normalise(out[i])
	}
	return out, nil
}

func TestAnIngestThatEndsEarlyKeepsWhatItStored(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "i.db"), Options{})
	defer s.Close()
	all := manyTexts(200)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	_, _, err := all.ingest(ctx, s, Ingest{Progress: func(done, _ int, _ string) {
		if n++; done >= 64 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	r, c, err := all.ingest(t.Context(), s, Ingest{})
	if err != nil || r.Added+r.Unchanged != 200 {
		t.Fatalf("%+v, %v", r, err)
	}
	complete(t, s, c, all)
}

// complete checks that each text is found by its own word, and that the database is sound.
func complete(t *testing.T, s *Store, c Collection, all texts) {
	t.Helper()
	if err := s.Stats(t.Context(), &c); err != nil || c.Files != len(all) || c.Chunks < len(all) {
		t.Errorf("%d files with %d chunks, want %d; %v", c.Files, c.Chunks, len(all), err)
	}
	for path := range all {
		word := strings.TrimSuffix(filepath.Base(path), ".md")
		if paths := find(t, s, c, word); len(paths) == 0 || paths[0] != path {
			t.Fatalf("%s is not found: %v", word, paths)
		}
	}
	db, err := s.file.DB()
	if err != nil {
		t.Fatal(err)
	}
	var check string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("the database is damaged: %s, %v", check, err)
	}
	var orphans int
	if err := db.QueryRow(`SELECT (SELECT count(*) FROM chunk WHERE file NOT IN (SELECT id FROM file)) +
		(SELECT count(*) FROM vector WHERE chunk NOT IN (SELECT id FROM chunk)) +
		abs((SELECT count(*) FROM words_` + fmt.Sprint(c.ID) + `) - (SELECT count(*) FROM chunk))`).Scan(&orphans); err != nil ||
		orphans != 0 {
		t.Errorf("%d rows belong to nothing, %v", orphans, err)
	}
}

func manyTexts(n int) texts {
	all := texts{}
	for i := range n {
		all[fmt.Sprintf("/d/word%dx.md", i)] = fmt.Sprintf("# Title %d\n\nword%dx %s\n", i, i,
			strings.Repeat("common text here ", 20))
	}
	return all
}

// killTexts is the number of files of an ingest that is killed several times.
const killTexts = 3000

const killVariable = "GATEHOUSE_TEST_INGEST"

func TestMain(m *testing.M) {
	if path := os.Getenv(killVariable); path != "" {
		ingestSlowly(path)
		return
	}
	os.Exit(m.Run())
}

// ingestSlowly ingests until it is killed, and prints how many files are stored: a collection that it reads through
// another Store.
func ingestSlowly(path string) {
	s, see := Open(path, Options{}), Open(path, Options{})
	all := manyTexts(killTexts)
	_, _, err := all.ingest(context.Background(), s, Ingest{
		Read: func(_ context.Context, it Item) (Document, error) {
			time.Sleep(2 * time.Millisecond)
			if c, err := see.Find(context.Background(), "ann/lab", "", "c"); err == nil {
				if err := see.Stats(context.Background(), &c); err == nil {
					fmt.Println(c.Files)
				}
			}
			text := all[it.Path]
			return Document{[]byte(text), "markdown", sha256.Sum256([]byte(text))}, nil
		},
	})
	fmt.Println("end", err)
}

// A killed ingest loses no file that was stored before, and the next one continues after them.
func TestAKilledIngestIsContinued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "i.db")
	rounds := 6
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 50
	}
	stored := 0
	for round := range rounds {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), killVariable+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, before, after := bufio.NewScanner(out), stored, 0
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "end") {
			fmt.Sscan(lines.Text(), &stored)
			if stored > before {
				after++
			}
			if after > 7*round%20 { // at some point after a transaction
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		io.Copy(io.Discard, out)
		cmd.Wait() // it was killed
		s := Open(path, Options{})
		c, err := s.Find(t.Context(), "ann/lab", "", "c")
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		if err == nil {
			if err := s.Stats(t.Context(), &c); err != nil || c.Files < stored {
				t.Fatalf("%d files were stored, and %d are left; %v", stored, c.Files, err)
			}
		}
		s.Close()
	}
	s := Open(path, Options{})
	defer s.Close()
	r, c, err := manyTexts(killTexts).ingest(t.Context(), s, Ingest{})
	if err != nil || r.Unchanged < stored || r.Unchanged+r.Added != killTexts {
		t.Fatalf("%+v after %d, %v", r, stored, err)
	}
	if stored == 0 {
		t.Error("no file was stored before a kill")
	}
	t.Logf("%d of %d files were stored before the last kill", stored, killTexts)
	complete(t, s, c, manyTexts(killTexts))
}

// themed returns n vectors around as many themes, and a function that returns further ones.
func themed(n, themes int) (v *vectors, another func() []float32) {
	const dims = 200
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(around []float32) []float32 {
		x := make([]float32, dims)
		for d := range x {
			x[d] = float32(rng.NormFloat64())
			if around != nil {
				x[d] = around[d] + 1.5*x[d]
			}
		}
		return normalise(x)
	}
	centres := make([][]float32, themes)
	for i := range centres {
		centres[i] = random(nil)
		for d := range centres[i] {
			centres[i][d] *= 14 // as long as a random vector of this many dimensions
		}
	}
	v = &vectors{dims: dims}
	for i := range n {
		v.appendVector(int64(i), packVector(random(centres[i%themes])))
	}
	return v, func() []float32 { return random(centres[rng.IntN(themes)]) }
}

// recallOf returns which part of the 50 nearest is among the 100 that are found.
func recallOf(v *vectors, queries int, another func() []float32) float64 {
	found, total := 0, 0
	for range queries {
		q, scale := quantise(another())
		got := map[int]bool{}
		for _, s := range v.nearest(q, scale, 100) {
			got[s.at] = true
		}
		all := make([]scored, len(v.ids))
		for i := range all {
			all[i] = scored{i, v.at(q, scale, i)}
		}
		slices.SortFunc(all, bestFirst)
		for _, s := range all[:50] {
			total++
			if got[s.at] {
				found++
			}
		}
	}
	return float64(found) / float64(total)
}

// The shortlist by signs has nearly all of the nearest vectors, which comparing all of them gives.
func TestShortlistFindsTheNearest(t *testing.T) {
	v, another := themed(12_000, 120)
	recall := recallOf(v, 20, another)
	t.Logf("recall@50 of 100 is %.4f", recall)
	if recall < 0.95 {
		t.Errorf("recall is %.3f, want at least .95", recall)
	}
}
