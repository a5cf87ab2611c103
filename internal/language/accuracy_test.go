package language

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	walked  = 150_000 // entries that are looked at
	sampled = 1500    // files that are judged
	atEach  = 60      // files of one extension in the balanced sample
)

// labelled are the extensions whose files are what they say; of .txt, for
// instance, that is not so.
var labelled = strings.Fields(".go .c .h .js .mjs .cjs .ts .py .md .json .yaml .yml .toml .html .css .sh .bash .proto .sql .s .xml .java .rb .rs .pl .bat .cc .cpp .svg")

// corpus finds the files of the Go installation, the module cache and node's
// own packages, by extension. None of them was learnt from.
func corpus(t *testing.T) map[string][]string {
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		t.Skip("there is no go command")
	}
	by := make(map[string][]string)
	for _, root := range append(strings.Fields(string(out)), "/usr/lib/node_modules", "/usr/local/lib/node_modules") {
		seen := 0
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if seen++; seen > walked {
				return fs.SkipAll
			}
			if ext := filepath.Ext(path); err == nil && d.Type().IsRegular() && slices.Contains(labelled, ext) && !strings.Contains(path, "go-enry") {
				by[ext] = append(by[ext], path)
			}
			return nil
		})
	}
	return by
}

// right judges some files, with and without their names.
func right(paths []string) (hidden, named, all float64) {
	for _, path := range paths {
		b, err := readHead(path)
		if err != nil || len(strings.TrimSpace(string(b))) < 20 {
			continue
		}
		all++
		want := ByName("x" + filepath.Ext(path))
		if is(Judge("", b).ID, want, path) {
			hidden++
		}
		if is(Judge(path, b).ID, want, path) {
			named++
		}
	}
	return hidden, named, all
}

// is takes any dialect of assembly for another: they share an extension.
func is(got, want, path string) bool {
	return got == want || filepath.Ext(path) == ".s" && strings.Contains(got, "assembly")
}

func readHead(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	return b[:min(len(b), HeadSize)], err
}

// Files nobody learnt from are told by their content alone, and better by
// their names.
func TestAccuracy(t *testing.T) {
	by := corpus(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var everything, balanced []string
	for _, ext := range labelled {
		paths := by[ext]
		rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		everything = append(everything, paths...)
		balanced = append(balanced, paths[:min(len(paths), atEach)]...)
		if h, n, all := right(paths[:min(len(paths), atEach)]); all > 0 {
			t.Logf("%-6s of %2.0f: name hidden %.3f, with names %.3f", ext, all, h/all, n/all)
		}
	}
	if len(everything) < sampled {
		t.Skip("too few files here")
	}
	rng.Shuffle(len(everything), func(i, j int) { everything[i], everything[j] = everything[j], everything[i] })
	h, n, all := right(everything[:sampled])
	t.Logf("as they come, %.0f files: name hidden %.3f, with names %.3f", all, h/all, n/all)
	if h/all < 0.95 || n/all < 0.97 {
		t.Errorf("name hidden %.3f, want 0.95; with names %.3f, want 0.97", h/all, n/all)
	}
	h, n, all = right(balanced)
	t.Logf("every extension alike, %.0f files: name hidden %.3f, with names %.3f", all, h/all, n/all)
	if h/all < 0.90 || n/all < 0.95 {
		t.Errorf("every extension alike: name hidden %.3f, want 0.90; with names %.3f, want 0.95", h/all, n/all)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add("", []byte("package a\n"))
	f.Add("x.h", []byte("<a b='"))
	listed := make(map[string]bool)
	for _, l := range All() {
		listed[l.ID] = true
	}
	f.Fuzz(func(t *testing.T, name string, head []byte) {
		v := Judge(name, head)
		if !listed[v.ID] || v.Confidence < 0 || v.Confidence > 1 {
			t.Errorf("%+v is not listed, or surer than sure", v)
		}
	})
}

func BenchmarkJudgeByWords(b *testing.B) {
	head, err := readHead("language.go")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		Judge("", head)
	}
}
