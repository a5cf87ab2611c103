package file

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestEdit(t *testing.T) {
	for name, c := range map[string]struct {
		file, old, with string
		all             bool
		want            string // "!code" for a refusal
	}{
		"plain":                          {"a b c", "b", "X", false, "a X c"},
		"deletes":                        {"a\nb\nc\n", "b\n", "", false, "a\nc\n"},
		"at the start":                   {"abc", "a", "X", false, "Xbc"},
		"at the end":                     {"abc", "c", "X", false, "abX"},
		"everything":                     {"abc", "abc", "", false, ""},
		"no final newline stays":         {"a\nb", "a", "X", false, "X\nb"},
		"several":                        {"a a a", "a", "b", false, "!ambiguous"},
		"several at once":                {"a a a", "a", "b", true, "b b b"},
		"overlapping ones count once":    {"aaaa", "aa", "b", true, "bb"},
		"missing":                        {"abc", "x", "y", false, "!not_found"},
		"missing, all":                   {"abc", "x", "y", true, "!not_found"},
		"the same":                       {"abc", "a", "a", false, "!invalid_arguments"},
		"empty":                          {"abc", "", "a", false, "!invalid_arguments"},
		"binary":                         {"a\x00b", "a", "b", false, "!binary"},
		"crlf, one line":                 {"a\r\nb\r\nc\r\n", "b", "X", false, "a\r\nX\r\nc\r\n"},
		"crlf, inserted line":            {"a\r\nb\r\nc\r\n", "b", "b\nX", false, "a\r\nb\r\nX\r\nc\r\n"},
		"crlf, several lines":            {"a\r\nb\r\nc\r\n", "a\nb\n", "a\nX\nb\n", false, "a\r\nX\r\nb\r\nc\r\n"},
		"crlf, old and new as read":      {"a\r\nb\r\n", "a\r\nb", "a\r\nX\r\nb", false, "a\r\nX\r\nb\r\n"},
		"crlf, only old as read":         {"a\r\nb\r\nc\r\n", "a\r\nb", "a\nX\nb", false, "a\r\nX\r\nb\r\nc\r\n"},
		"crlf in both, lf file":          {"a\nb\n", "a\r\nb", "a\r\nX\r\nb", false, "a\nX\nb\n"},
		"crlf only in new, lf file":      {"a\nb\n", "a", "a\r\nX", false, "a\nX\nb\n"},
		"crlf taken out on purpose":      {"a\r\nb\r\n", "a\r\nb", "a\nb", false, "a\nb\r\n"},
		"crlf, a line joined":            {"a\r\nb\r\n", "\nb", "b", false, "ab\r\n"},
		"crlf, begins with a newline":    {"a\r\nb\r\n", "\nb", "\nX", false, "a\r\nX\r\n"},
		"crlf, newline alone, before":    {"a\r\nb", "\n", "X\n", false, "aX\r\nb"},
		"crlf, newline alone, after":     {"a\r\nb", "\n", "\nX", false, "a\r\nXb"},
		"crlf, newline alone, gone":      {"a\r\nb", "\n", "", false, "ab"},
		"crlf, newline alone, all":       {"a\r\nb\r\nc", "\n", "\n\n", true, "a\r\n\r\nb\r\n\r\nc"},
		"crlf, blank line":               {"a\r\n\r\nb\r\n", "a\n\nb", "a\nb", false, "a\r\nb\r\n"},
		"crlf, several":                  {"a\r\nb\r\na\r\nb\r\n", "a\nb", "X\nY", false, "!ambiguous"},
		"crlf, several at once":          {"a\r\nb\r\na\r\nb\r\n", "a\nb", "X\nY", true, "X\r\nY\r\nX\r\nY\r\n"},
		"crlf, last line":                {"a\r\nb", "b", "b\nc", false, "a\r\nb\r\nc"},
		"lone return":                    {"a\rb\r", "a\rb", "a\rX", false, "a\rX\r"},
		"lone return beside crlf":        {"a\rb\r\nc\r\n", "b\nc", "b\nX", false, "a\rb\r\nX\r\n"},
		"mixed, untouched lines stay":    {"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nb\nX\nd", false, "a\r\nb\nX\r\nd\n"},
		"mixed, local ending":            {"a\r\nb\nc\n", "b", "b\nX", false, "a\r\nb\nX\nc\n"},
		"mixed, lf found as it is":       {"a\nb\r\na\r\nb\n", "a\nb", "X\nb", false, "X\nb\r\na\r\nb\n"},
		"bom stays":                      {"\xEF\xBB\xBFa\nb\n", "a", "X", false, "\xEF\xBB\xBFX\nb\n"},
		"bom in old":                     {"\xEF\xBB\xBFa\nb\n", "\uFEFFa", "X", false, "\xEF\xBB\xBFX\nb\n"},
		"bom in both":                    {"\xEF\xBB\xBFa\nb\n", "\uFEFFa\nb", "\uFEFFa\nX", false, "\xEF\xBB\xBFa\nX\n"},
		"bom alone":                      {"\xEF\xBB\xBFa\n", "\uFEFF", "x", false, "!not_found"},
		"bytes that are no text stay":    {"caf\xe9 a\n\xff b\n", " a", " X", false, "caf\xe9 X\n\xff b\n"},
		"dollar and backslash are plain": {"a\n", "a", `$1\0&`, false, `$1\0&` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
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

func TestEditAnswers(t *testing.T) {
	h := newHouse(t)
	h.put("f", "one\n\ttwo = 2\n\tthree = 3\n}\n"+strings.Repeat("x\n", 12))
	for _, c := range []struct {
		old  string
		want []string
	}{
		{"x", []string{"ambiguous: old_string occurs 12 times in f, on lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and more", "replace_all"}},
		{"\ttwo = 2\n    three = 3\n", []string{`the nearest is line 3, where the file has "\tthree = 3" and old_string "    three = 3"`}},
		{"\ttwo = 2\n\tfour = 4\n", []string{`the nearest is line 3, where the file has "\tthree = 3" and old_string "\tfour = 4"`}},
		{"three == 3", []string{`the nearest is line 3: "\tthree = 3"`, "copy the text exactly"}},
		{"x\n}\nz", []string{"not_found: old_string is not in f; "}},
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
	h.want(h.call("file_edit", "path", "f", "old_string", "three", "new_string", "four"), map[string]any{"path": "f", "success": true, "replacements": 1, "line": 3})
	for path, want := range map[string]string{"missing": "!not_found", ".": "!is_a_directory", "../out/f": "!outside_root"} {
		h.want(h.call("file_edit", "path", path, "old_string", "a", "new_string", "b"), map[string]any{"error": want})
	}
}

func TestEditLimits(t *testing.T) {
	h := newHouse(t)
	h.put("big", strings.Repeat("0123456789abcde\n", (editMost>>4)+1))
	h.want(h.call("file_edit", "path", "big", "old_string", "a", "new_string", "b"), map[string]any{"error": "!too_large"})
	h.put("many", strings.Repeat("a", matchesMost+1))
	h.want(h.call("file_edit", "path", "many", "old_string", "a", "new_string", "b", "replace_all", true), map[string]any{"error": "!too_large"})
	h.put("grows", strings.Repeat("a", 1<<16))
	h.want(h.call("file_edit", "path", "grows", "old_string", "a", "new_string", strings.Repeat("b", 2000), "replace_all", true), map[string]any{"error": "!too_large"})
}

// Edits of one file that arrive together are all there in the end, whatever
// spelling they use.
func TestConcurrentEdits(t *testing.T) {
	h := newHouse(t)
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
			out := h.call("file_edit", "path", path, "old_string", fmt.Sprintf("line %02d old", i), "new_string", fmt.Sprintf("line %02d new", i))
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

// An edit in a file with any line endings is the edit in the same file with
// plain ones, and what it did not have to touch keeps its bytes.
func FuzzEdit(f *testing.F) {
	f.Add([]byte("a\r\nb\nc\r\n"), "b\nc", "b\nX\nc")
	f.Add([]byte("\xEF\xBB\xBFa\r\n\r\n"), "\n\n", "\n")
	f.Add([]byte("\r\r\n\n\r"), "\n", "\r\n\n")
	f.Add([]byte("aXaXa"), "aXa", "")
	f.Fuzz(func(t *testing.T, content []byte, old, with string) {
		if old == "" || old == with {
			return
		}
		m := find(content, old, with)
		at := 0
		for _, s := range m.spans {
			if s.start < at || s.from < at || s.to < s.from || s.to > len(content) {
				t.Fatalf("span %+v after %d in %d bytes", s, at, len(content))
			}
			at = s.to
		}
		got := m.apply()
		if int64(len(got)) != m.size() {
			t.Errorf("size %d, want %d", m.size(), len(got))
		}
		plain := unixed(string(content))
		if strings.Contains(plain+old+with, "\r") || bytes.HasPrefix(content, []byte(bom)) || strings.Count(plain, old) != len(m.spans) {
			return // returns that end no line; a mark that is not looked at; exact matches, which win over others
		}
		if want := strings.ReplaceAll(plain, old, with); unixed(string(got)) != want {
			t.Errorf("%q: %q for %q gives %q, want the lines of %q", content, with, old, got, want)
		}
	})
}

func BenchmarkEdit(b *testing.B) {
	h := newHouse(b)
	h.put("f", numbered(3000))
	for i := 0; b.Loop(); i++ {
		h.call("file_edit", "path", "f", "old_string", fmt.Sprint("line 150", i%2, "\n"), "new_string", fmt.Sprint("line 150", (i+1)%2, "\n"))
	}
}

func BenchmarkFind(b *testing.B) {
	content := []byte(strings.ReplaceAll(numbered(3000), "\n", "\r\n"))
	for b.Loop() {
		find(content, "line 1500\nline 1501\n", "line 1500\nX\n")
	}
}

func BenchmarkRead(b *testing.B) {
	h := newHouse(b)
	h.put("d/f.go", numbered(250))
	b.ReportAllocs()
	for b.Loop() {
		h.result("file_read", "path", "d/f.go")
	}
}
