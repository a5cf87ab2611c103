package file

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestSearch(t *testing.T) {
	h := newFixture(t)
	h.put("src/a.go", "package a\n\n// Open opens.\nfunc Open() {}\n\nvar x = Open\n")
	h.put("src/b_test.go", "package a\n\nvar y = Open()\n")
	h.put("notes.md", "Open the file\n")
	h.put("vendor/v.go", "Open\n")
	h.put(".gitignore", "vendor/\n")
	h.put(".env", "Open=1\n")
	tag := h.call("file_read", "path", "src/a.go")["etag"]
	head := fmt.Sprintf("src/a.go etag=%v\n", tag)
	for _, c := range []struct {
		args []any
		want string
	}{
		{
			[]any{"pattern", "Open", "glob", "a.go"},
			head + "3: // Open opens.\n4: func Open() {}\n6: var x = Open\n[3 hits in 1 file]",
		},
		{
			[]any{"pattern", "func Open", "context", 1},
			head + "3- // Open opens.\n4: func Open() {}\n5- \n[1 hit in 1 file]",
		},
		{
			[]any{"pattern", "Open", "path", "src/a.go", "context", 1},
			head + "2- \n3: // Open opens.\n4: func Open() {}\n5- \n6: var x = Open\n[3 hits in 1 file]",
		},
		{[]any{"pattern", "open", "mode", "files", "ignore_case", true}, "notes.md\nsrc/a.go\nsrc/b_test.go\n[3 " +
			"files; 1 protected file not shown]"},
		{
			[]any{"pattern", "Open", "mode", "count", "path", "src"},
			"src/a.go: 3\nsrc/b_test.go: 1\n[4 hits in 2 files]",
		},
		{[]any{"pattern", "Open()", "literal", true, "mode", "files"}, "src/a.go\nsrc/b_test.go\n[2 files]"},
		{[]any{"pattern", "Open", "mode", "files", "type", "markdown"}, "notes.md\n[1 file]"},
		{
			[]any{"pattern", "Open", "mode", "files", "type", "go", "all", true},
			"src/a.go\nsrc/b_test.go\nvendor/v.go\n[3 files]",
		},
		{[]any{"pattern", "Open", "mode", "files", "path", "./src", "glob", "!*_test.go"}, "./src/a.go\n[1 file]"},
		{
			[]any{"pattern", `\}\n\nvar`, "multiline", true, "path", "src/a.go"},
			head + "4: func Open() {}\n5: \n6: var x = Open\n[1 hit in 1 file]",
		},
		{[]any{"pattern", "nowhere"}, "[nothing found; 5 files searched, 1 entry ignored]"},
		{[]any{"glob", "*.go"}, "src/a.go\nsrc/b_test.go\n[2 files]"},
		{[]any{"mode", "names", "pattern", "_test"}, "src/b_test.go\n[1 file]"},
		{[]any{"mode", "names", "pattern", "*.md"}, "notes.md\n[1 file]"},
		{[]any{"mode", "names", "pattern", `^src/.*\.go$`}, "src/a.go\nsrc/b_test.go\n[2 files]"},
		{[]any{"mode", "names", "pattern", "SRC/A", "ignore_case", true}, "src/a.go\n[1 file]"},
		{[]any{"mode", "names", "pattern", ".env"}, ".env\n[1 file]"},
		{[]any{"mode", "names", "glob", "{a.go,*.md}"}, "notes.md\nsrc/a.go\n[2 files]"},
		{[]any{"pattern", "a(?=b)"}, "!invalid_arguments"},
		{[]any{"pattern", "x", "type", "klingon"}, "!invalid_arguments"},
		{[]any{"pattern", "x", "glob", "{a"}, "!invalid_arguments"},
		{[]any{"pattern", "x", "cursor", "!"}, "!invalid_arguments"},
		{[]any{"mode", "files"}, "!invalid_arguments"},
		{[]any{"pattern", "x", "path", "missing"}, "!not_found"},
		{[]any{"pattern", "x", "path", "../out"}, "!outside_root"},
		{[]any{"pattern", "x", "path", h.out}, "!outside_root"},
	} {
		t.Run(fmt.Sprint(c.args...), func(t *testing.T) {
			h.t = t
			if got := h.text("file_search", c.args...); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	if out := h.call("file_search", "pattern", "Open", "path", h.other); out["files"] != 0.0 {
		t.Errorf("the second folder: %v", out)
	}
}

// Pages are small, and following the cursor shows everything once.
func TestSearchPages(t *testing.T) {
	h := newFixture(t)
	for i := range 300 {
		h.put(
			fmt.Sprintf("dir%d/a-rather-long-name-%d.txt", i%7, i),
			strings.Repeat("needle in a line of some length\n", 1+i%30),
		)
	}
	for _, mode := range []string{"content", "files", "count", "names"} {
		seen := map[string]int{}
		cursor, pages := "", 0
		for {
			out := h.call(
				"file_search", "pattern",
				map[string]string{"names": "*.txt"}[mode]+map[bool]string{true: "needle"}[mode != "names"], "mode",
				mode, "cursor", cursor, "limit", 1000,
			)
			text := out["content"].(string)
			if len(text) > 8000 {
				t.Fatalf("%s: a page of %d bytes", mode, len(text))
			}
			file := ""
			for line := range strings.Lines(text) {
				switch {
				case strings.HasPrefix(line, "dir") && mode == "content":
					file = strings.Fields(line)[0]
				case strings.HasPrefix(line, "dir"):
					seen[line]++
				case strings.Contains(line, ": needle"):
					seen[file+line]++
				}
			}
			if pages++; out["next_cursor"] == nil {
				break
			}
			cursor = out["next_cursor"].(string)
		}
		want := 300
		if mode == "content" {
			want = 0
			for i := range 300 {
				want += 1 + i%30
			}
		}
		if len(seen) != want || pages < 2 {
			t.Errorf("%s: %d things on %d pages, want %d", mode, len(seen), pages, want)
		}
		for k, n := range seen {
			if n != 1 {
				t.Errorf("%s: %q comes %d times", mode, k, n)
			}
		}
	}
}

// What has to be escaped on the way counts as it is sent.
func TestSearchPageAsItIsSent(t *testing.T) {
	h := newFixture(t)
	for i := range 200 {
		h.put(fmt.Sprintf("f%d.txt", i), "\tneedle\t\"quoted\"\t\\\t\t\t\t\t\t\x01\n")
	}
	for _, mode := range []string{"content", "count"} {
		raw, err := json.Marshal(h.call("file_search", "pattern", "needle", "mode", mode, "limit", 1000)["content"])
		if err != nil || len(raw) > 7600 || len(raw) < 2400 {
			t.Errorf("%s: %d bytes, %v", mode, len(raw), err)
		}
	}
}

// Names that are no text, links and special files do no harm.
func TestSearchOddities(t *testing.T) {
	h := newFixture(t)
	h.put("bad\xff", "needle\n")
	os.Symlink(h.out, h.at("leads-out"))
	os.Symlink("bad\xff", h.at("link"))
	os.Symlink(".", h.at("loop"))
	if err := os.WriteFile(h.out+"/secret", []byte("needle"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := h.text("file_search", "pattern", "needle", "mode", "files"); out != "bad\\xff\n[1 file]" {
		t.Errorf("%v", out)
	}
	out := h.call("file_search", "pattern", "needle", "mode", "files", "path", h.at("link"))
	if out["files"] != 1.0 {
		t.Errorf("through a link inside: %v", out)
	}
	h.want(h.call("file_search", "pattern", "needle", "path", "leads-out"), map[string]any{"error": "!outside_root"})
	h.want(
		h.call("file_search", "pattern", "needle", "path", "leads-out/secret"),
		map[string]any{"error": "!outside_root"},
	)
}

// Totals are true, and cursors lead to every hit of every file once.
func TestSearchShowsEveryHit(t *testing.T) {
	h := newFixture(t)
	want := map[string]bool{}
	for name, n := range map[string]int{"a.go": 152, "b.txt": 7, "c.txt": 333} {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "needle %s %d\nother\n", name, i)
			want[fmt.Sprintf("needle %s %d", name, i)] = true
		}
		h.put(name, b.String())
	}
	for _, c := range []struct {
		path  string
		limit int
		total int
	}{{".", 100, 492}, {".", 7, 492}, {".", 1000, 492}, {"a.go", 100, 152}, {"a.go", 30, 152}} {
		seen, pages := map[string]int{}, 0
		for cursor := ""; ; pages++ {
			out := h.call("file_search", "pattern", "needle", "path", c.path, "limit", c.limit, "cursor", cursor)
			if out["error"] != nil || fmt.Sprint(out["hits"]) != fmt.Sprint(c.total) || pages > 500 {
				t.Fatalf("%+v: %v", c, out)
			}
			for line := range strings.Lines(fmt.Sprint(out["content"])) {
				if _, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
					seen[text]++
				}
			}
			next, _ := out["next_cursor"].(string)
			if cursor = next; cursor == "" {
				break
			}
		}
		if len(seen) != c.total {
			t.Errorf("%+v: %d of %d hits shown on %d pages", c, len(seen), c.total, pages+1)
		}
		for text, n := range seen {
			if n != 1 || !want[text] {
				t.Errorf("%+v: %q shown %d times", c, text, n)
			}
		}
	}
}

// A carriage return is found where the pattern asks for one, and is no part of
// the line where it does not.
func TestSearchForCarriageReturns(t *testing.T) {
	h := newFixture(t)
	h.put("f", "one\r\ntwo\nthree \r\nfo\rur\n")
	for pattern, want := range map[string]float64{`\r`: 3, `\r$`: 2, `e\r$`: 1, `[\r]`: 3, `one$`: 1, `e$`: 1,
		`two\r`: 0} {
		if got, _ := h.call("file_search", "pattern", pattern)["hits"].(float64); got != want {
			t.Errorf("%s: %v hits, want %v", pattern, got, want)
		}
	}
}
