package language

import (
	"io/fs"
	"math/rand/v2"
	"os"
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
var labelled = strings.Fields(
	".go .c .h .js .mjs .cjs .ts .py .md .json .yaml .yml .toml .html .css .sh .bash .proto .sql .s .xml .java .rb " +
		".rs .pl .bat .cc .cpp .svg",
)

// corpus finds the files of some folders by extension. What lies there differs
// by machine, so the folders have to be named.
func corpus(t *testing.T) map[string][]string {
	folders := os.Getenv("GATEHOUSE_CORPUS")
	if folders == "" {
		t.Skip("GATEHOUSE_CORPUS names no folders of source files; TestWordsOfTheseTexts judges those that are here")
	}
	by := make(map[string][]string)
	for _, root := range filepath.SplitList(folders) {
		seen := 0
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if seen++; seen > walked {
				return fs.SkipAll
			}
			if ext := filepath.Ext(path); err == nil && d.Type().IsRegular() && slices.Contains(labelled, ext) &&
				!strings.Contains(path, "go-enry") {
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

// these are texts as people write them, none of them learnt from, each under its
// language. Those in the last line are none.
const these = `
go: func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {\n\tif s == nil {\n\t\treturn nil, fmt.Errorf("no store")\n\t}\n}
python: def load(path):\n    with open(path) as f:\n        return [line.strip() for line in f if line]\n\nclass Store(dict):\n    pass
javascript: const fs = require('fs');\nmodule.exports = function load(path, done) {\n  fs.readFile(path, (err, data) => done(err, data));\n};
typescript: export interface Store<T> {\n  get(key: string): Promise<T | undefined>;\n  readonly size: number;\n}
c: #include <stdio.h>\n\nint main(int argc, char **argv) {\n\tprintf("%d\\n", argc);\n\treturn 0;\n}
cpp: #include <vector>\nnamespace a {\ntemplate <typename T> class Store { public: std::vector<T> all; };\n}
java: package a.b;\n\nimport java.util.List;\n\npublic class Store {\n    private final List<String> all;\n}
rust: use std::collections::HashMap;\n\npub fn load(path: &str) -> Result<String, Error> {\n    let mut map = HashMap::new();\n}
ruby: require 'json'\n\nclass Store\n  attr_reader :all\n  def each(&block)\n    @all.each do |one|\n      yield one\n    end\n  end\nend
shell: set -eu\nfor f in "$@"; do\n  if [ -f "$f" ]; then\n    echo "$f" | sed 's/a/b/'\n  fi\ndone
sql: SELECT a.id, count(*) FROM orders a LEFT JOIN items b ON a.id = b.order_id WHERE a.day > '2020-01-01' GROUP BY a.id;
yaml: services:\n  web:\n    image: nginx\n    ports:\n      - "80:80"\n    environment:\n      - A=b
json: {"name": "a", "version": "1.0.0", "dependencies": {"b": "^2.0.0"}}
html: <!DOCTYPE html>\n<html><head><title>a</title></head><body><p class="b">c</p></body></html>
css: .a > .b {\n  margin: 0 auto;\n  color: #fff;\n}\n@media (max-width: 600px) { .a { display: none; } }
markdown: # A title\n\nSome *words* and a [link](https://example.com).\n\n- one\n- two\n
toml: [package]\nname = "a"\nversion = "0.1.0"\n\n[dependencies]\nb = { version = "1", features = ["c"] }
proto: syntax = "proto3";\npackage a;\n\nmessage Store {\n  string name = 1;\n  repeated int32 ids = 2;\n}
plaintext: just words
plaintext: hello
plaintext: x
plaintext: foo bar baz qux
plaintext: Meeting at noon, bring cake. Anna said she would be late.
plaintext: 1 2 3
plaintext: TODO
`

// Content alone tells a language, and what tells none is plain text: a guess that
// is hardly surer than any other is no answer.
func TestWordsOfTheseTexts(t *testing.T) {
	for line := range strings.Lines(strings.TrimSpace(these)) {
		want, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		text = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t").Replace(text)
		v := Judge("", []byte(text))
		if v.ID != want {
			t.Errorf("%s: %+v", text, v)
		}
		if v.Confidence < sureByWords && (v.ID != Unknown || v.Confidence != 0 && v.Method == "unknown") {
			t.Errorf("%s: an answer that is hardly one: %+v", text, v)
		}
	}
}

// Files outside the training set are recognised by their content alone, and better by
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
