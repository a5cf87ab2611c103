package file

import (
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/files/edit"
)

// Package edit tests what is found and written; here is what a
// caller sees of it.
func TestEdit(t *testing.T) {
	for name, c := range map[string]struct {
		file, old, with string
		all             bool
		want            string // "!code" for a refusal
	}{
		"plain":              {"a b c", "b", "X", false, "a X c"},
		"deletes":            {"a\nb\nc\n", "b\n", "", false, "a\nc\n"},
		"several":            {"a a a", "a", "b", false, "!ambiguous"},
		"several at once":    {"a a a", "a", "b", true, "b b b"},
		"overlapping ones":   {"aaaa", "aa", "b", true, "bb"},
		"missing":            {"abc", "x", "y", false, "!not_found"},
		"the same":           {"abc", "a", "a", false, "!invalid_arguments"},
		"empty":              {"abc", "", "a", false, "!invalid_arguments"},
		"binary":             {"a\x00b", "a", "b", false, "!binary"},
		"mixed endings stay": {"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nb\nX\nd", false, "a\r\nb\nX\r\nd\n"},
		"indented otherwise": {
			"\ta {\n\t\tb\n\t}\n", "    a {\n        b\n", "    a {\n        c\n", false, "\ta {\n\t\tc\n\t}\n",
		},
		"which is not clear":  {"a\n\nb\n", "a\nb\n", "a\nX\nb\n", false, "!unclear"},
		"already as it wants": {"a  \nb\n", "a\nb\n", "a \nb\n", false, "!unchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFixture(t)
			h.put("f", c.file)
			out := h.call("file_edit", "path", "f", "old_string", c.old, "new_string", c.with, "replace_all", c.all)
			want := c.want
			if strings.HasPrefix(want, "!") {
				if out["error"] != want {
					t.Errorf("got %v, want %s", out, want)
				}
				want = c.file
			} else if out["error"] != nil {
				t.Errorf("got %v", out)
			}
			if got := h.get("f"); got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			h.noTemps()
		})
	}
}

// A refusal shows where to look, with what the eye would miss.
func TestEditRefusals(t *testing.T) {
	h := newFixture(t)
	h.put("f", "one\n\ttwo = 2\n\tthree = 3\n}\n"+strings.Repeat("x\n", 12)+"last \u00a0\"end\"\n")
	for _, c := range []struct {
		old  string
		want []string
	}{
		{
			"x",
			[]string{
				"ambiguous: old_string occurs 12 times in f, on lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and more",
				"line 5, after \"}\"", "near_line", "replace_all",
			},
		},
		{
			"  two = 2\n  four = 4\n",
			[]string{"not_found", `line 2 differs at column 1: file "→two·=·2", old_string "··two·=·2"`},
		},
		{"\ttwo = 2\n\tfour = 4\n", []string{`line 3 differs at column 2: file "→three·=·3", old_string "→four·=·4"`}},
		{"three == 3", []string{`nearest is line 3: "→three·=·3"`, "copy the text exactly"}},
		{"last  \"end\"x", []string{`nearest is line 17: "last·⍽"end""`}},
		{"nothing like it 12345", []string{"not_found: old_string is not in f\n"}},
		{" \n \n", []string{"not_found: old_string is not in f\n"}},
	} {
		out := h.call("file_edit", "path", "f", "old_string", c.old, "new_string", "new")
		for _, want := range c.want {
			if msg, _ := out["message"].(string); !strings.Contains(msg, want) {
				t.Errorf("%q: got %q, want %q in it", c.old, msg, want)
			}
		}
	}
	for path, want := range map[string]string{"missing": "!not_found", ".": "!is_a_directory",
		"../out/f": "!outside_root", ".env": "!denied", ".git/config": "!denied"} {
		h.want(h.call("file_edit", "path", path, "old_string", "a", "new_string", "b"), map[string]any{"error": want})
	}
	h.want(h.call("file_edit", "path", "f", "old_string", "one"), map[string]any{"error": "!invalid_arguments"})
	h.want(
		h.call(
			"file_edit", "path", "f", "old_string", "one", "new_string", "1", "edits",
			[]any{map[string]any{"old_string": "two", "new_string": "2"}},
		),
		map[string]any{"error": "!invalid_arguments"},
	)
}

func TestEditAnswers(t *testing.T) {
	h := newFixture(t)
	h.put("f", "one\n\ttwo\nthree\n")
	tag := h.call("file_stat", "path", "f")["etag"]
	out := h.call("file_edit", "path", "f", "old_string", "  two\n", "new_string", "  2\n", "if_match", tag)
	h.want(
		out,
		map[string]any{
			"path":         "f",
			"success":      true,
			"replacements": 1,
			"line":         2,
			"level":        "indentation",
			"note":         nil,
			"diff":         "@@ -1,3 +1,3 @@\n one\n-\ttwo\n+\t2\n three",
		},
	)
	if now := h.call("file_stat", "path", "f")["etag"]; out["etag"] != now || now == tag {
		t.Errorf("tags: was %v, answered %v, is %v", tag, out["etag"], now)
	}
	h.want(
		h.call("file_edit", "path", "f", "old_string", "one", "new_string", "1", "if_match", tag),
		map[string]any{"error": "!stale"},
	)

	h.put("g.go", "package a\n\nfunc f() {}\n")
	h.want(
		h.call("file_edit", "path", "g.go", "old_string", "{}", "new_string", "{", "strict", true),
		map[string]any{"error": "!broken"},
	)
	before := h.call("file_stat", "path", "g.go")["etag"]
	out = h.call("file_edit", "path", "g.go", "old_string", "{}", "new_string", "{", "dry_run", true)
	h.want(
		out,
		map[string]any{
			"etag":  before,
			"level": "exact",
			"diff":  "@@ -1,3 +1,3 @@\n package a\n \n-func f() {}\n+func f() {",
		},
	)
	if note, _ := out["note"].(string); !strings.Contains(note, "now it cannot") ||
		!strings.Contains(note, "nothing was written") {
		t.Errorf("note %q", note)
	}
	if h.get("g.go") != "package a\n\nfunc f() {}\n" {
		t.Error("a dry run wrote")
	}
	h.put("long", strings.Repeat("a\n", 100))
	out = h.call("file_edit", "path", "long", "old_string", "a", "new_string", "b", "replace_all", true)
	if diff, _ := out["diff"].(string); strings.Count(diff, "\n") != maxDiffLines-1 ||
		!strings.HasSuffix(diff, "… 162 more lines") {
		t.Errorf("a long diff has %d lines:\n%s", strings.Count(diff, "\n")+1, diff)
	}
}

func TestSeveralEdits(t *testing.T) {
	h := newFixture(t)
	h.put("f", "a\nb\nc\n")
	pair := func(old, with string) map[string]any { return map[string]any{"old_string": old, "new_string": with} }
	for _, c := range []struct {
		edits []any
		want  string
	}{
		{[]any{pair("a", "1"), pair("zzz", "2")}, "!not_found"},
		{[]any{pair("a\nb", "1"), pair("b\nc", "2")}, "!overlap"},
		{[]any{pair("a", "1"), pair("1", "2")}, "!not_found"},
		{[]any{pair("a", "1"), pair("", "2")}, "!invalid_arguments"},
	} {
		h.want(h.call("file_edit", "path", "f", "edits", c.edits), map[string]any{"error": c.want})
		if h.get("f") != "a\nb\nc\n" {
			t.Fatalf("%v: f holds %q", c.edits, h.get("f"))
		}
	}
	h.want(
		h.call("file_edit", "path", "f", "edits", []any{pair("c", "3"), pair("a", "1")}),
		map[string]any{"replacements": 2, "line": 1},
	)
	if h.get("f") != "1\nb\n3\n" {
		t.Errorf("f holds %q", h.get("f"))
	}
}

func TestEditLimits(t *testing.T) {
	h := newFixture(t)
	h.put("big", strings.Repeat("0123456789abcde\n", (defaultMaxEdit>>4)+1))
	h.want(
		h.call("file_edit", "path", "big", "old_string", "a", "new_string", "b"), map[string]any{"error": "!too_large"},
	)
	h.put("many", strings.Repeat("a", edit.MaxPlaces+1))
	h.want(
		h.call("file_edit", "path", "many", "old_string", "a", "new_string", "b", "replace_all", true),
		map[string]any{"error": "!too_large"},
	)
	h.put("grows", strings.Repeat("a", 1<<16))
	h.want(
		h.call(
			"file_edit", "path", "grows", "old_string", "a", "new_string", strings.Repeat("b", 2000), "replace_all",
			true,
		),
		map[string]any{"error": "!too_large"},
	)
}

// Edits of one file that arrive together are all there in the end, whatever
// spelling they use.
func TestConcurrentEdits(t *testing.T) {
	h := newFixture(t)
	const n = 24
	var content, want strings.Builder
	for i := range n {
		fmt.Fprintf(&content, "line %02d old\n", i)
		fmt.Fprintf(&want, "line %02d new\n", i)
	}
	h.put("d/f", content.String())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			path := []string{"d/f", "./d//f", h.dir + "/d/f"}[i%3]
			out := h.call(
				"file_edit", "path", path, "old_string", fmt.Sprintf("line %02d old", i), "new_string",
				fmt.Sprintf("line %02d new", i),
			)
			if out["error"] != nil {
				t.Errorf("edit %d: %v", i, out)
			}
		})
	}
	wg.Wait()
	if got := h.get("d/f"); got != want.String() {
		t.Errorf("edits were lost:\n%s", got)
	}
}

// A hard link is parted: its other name may lie where the caller may not write.
func TestHardLinksAreParted(t *testing.T) {
	h := newFixture(t)
	h.put(h.out+"/f", "outside\n")
	if err := os.Link(h.out+"/f", h.at("f")); err != nil {
		t.Skip(err)
	}
	out := h.call("file_edit", "path", "f", "old_string", "outside", "new_string", "inside")
	h.want(out, map[string]any{"note": "the file had 2 hard links; only this path has the new content"})
	if h.get("f") != "inside\n" || h.get(h.out+"/f") != "outside\n" {
		t.Errorf("inside %q, outside %q", h.get("f"), h.get(h.out+"/f"))
	}
	h.want(h.call("file_write", "path", "f", "content", "x"), map[string]any{"note": nil})
}

func BenchmarkEdit(b *testing.B) {
	h := newFixture(b)
	h.put("f", numbered(3000))
	for i := 0; b.Loop(); i++ {
		h.call(
			"file_edit", "path", "f", "old_string", fmt.Sprint("line 150", i%2, "\n"), "new_string",
			fmt.Sprint("line 150", (i+1)%2, "\n"),
		)
	}
}

// A whole call on a large source file, its syntax check and waiting for the disk
// included.
func BenchmarkEditGo(b *testing.B) {
	h := newFixture(b)
	content, err := os.ReadFile(filepath.Join(build.Default.GOROOT, "src/net/http/server.go"))
	if err != nil {
		b.Skip(err)
	}
	h.put("f.go", string(content))
	for i := 0; b.Loop(); i++ {
		old, with := "    defer c.mu.Unlock()   // x", "    defer c.mu.Unlock()   // y"
		if i == 0 {
			h.put(
				"f.go",
				strings.Replace(string(content), "\tdefer c.mu.Unlock()\n", "\tdefer c.mu.Unlock()   // x\n", 1),
			)
		} else if i%2 == 1 {
			old, with = with, old
		}
		if out := h.call("file_edit", "path", "f.go", "old_string", old, "new_string", with); out["error"] != nil {
			b.Fatal(out)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	h := newFixture(b)
	h.put("d/f.go", numbered(250))
	b.ReportAllocs()
	for b.Loop() {
		h.result("file_read", "path", "d/f.go")
	}
}
