package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// editAllArgs are the arguments with which the first word of each file becomes another.
func editAllArgs(paths []string, etags []string, word string, columns int) []any {
	edits := make([][]map[string]any, len(paths))
	for i := range paths {
		edits[i] = []map[string]any{
			{"line": 2, "column": 1, "end_line": 2, "end_column": columns + 1, "new_text": word},
		}
	}
	args := []any{"paths", paths, "edits", edits}
	if etags != nil {
		args = append(args, "if_match", etags)
	}
	return args
}

func TestSeveralFilesChangeTogether(t *testing.T) {
	h := newFixture(t)
	var paths []string
	for i := range 60 { // more than undo keeps single changes
		paths = append(paths, fmt.Sprintf("d%d/f%d.txt", i%7, i))
		h.put(paths[i], "größe\r\nold 1\nend")
	}
	before := snapshot(t, h.dir)
	out := h.call("file_edit_all", editAllArgs(paths, nil, "new", 3)...)
	h.want(out, map[string]any{"files": 60.0, "edits": 60.0})
	for _, p := range paths {
		if got := h.get(p); got != "größe\r\nnew 1\nend" {
			t.Fatalf("%s is %q", p, got)
		}
	}
	if undone := h.call("file_undo")["undone"].([]any); len(undone) != 60 {
		t.Errorf("undone: %d files, want 60", len(undone))
	}
	if after := snapshot(t, h.dir); after != before {
		t.Errorf("after file_undo:\n%s\nwant\n%s", after, before)
	}
	h.noTemps()
}

// If one file is refused, no file changes.
func TestNoFileChangesIfOneIsRefused(t *testing.T) {
	h := newFixture(t)
	paths := []string{"a.txt", "b.txt", "c.txt"}
	for _, p := range paths {
		h.put(p, "one\nold 1\n")
	}
	h.put(".env", "one\nold 1\n")
	before := snapshot(t, h.dir)
	for what, args := range map[string][]any{
		"stale: c.txt has changed": editAllArgs(paths, []string{"", "", "abcdefabcdef"}, "new", 3),
		"c.txt has no range 2:1 to 2:99": {"paths", []string{"c.txt"}, "edits",
			editAllArgs(paths, nil, "x", 98)[3].([][]map[string]any)[:1]},
		"there are 3 paths, 0 lists of edits": {"paths", paths, "edits", [][]any{}},
		"denied: ":                            editAllArgs([]string{"a.txt", ".env"}, nil, "new", 3),
		"a.txt is given twice":                editAllArgs([]string{"a.txt", "./a.txt"}, nil, "new", 3),
		"missing.txt does not exist":          editAllArgs([]string{"a.txt", "missing.txt"}, nil, "new", 3),
	} {
		_, err := h.result("file_edit_all", args...)
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %s", err, what)
		}
	}
	if after := snapshot(t, h.dir); after != before {
		t.Errorf("files changed:\n%s\nwant\n%s", after, before)
	}
}

// A file that another program changes in the middle of the change lets all of it fail.
func TestAChangeThatFailsInTheMiddleIsTakenBack(t *testing.T) {
	h := newFixture(t)
	m := &files{maxEdit: defaultMaxEdit, journals: journals{dir: filepath.Join(t.TempDir(), "journal")}}
	var all []*replacement
	for _, name := range []string{"a", "b", "c"} {
		h.put(name, "old "+name)
		p, err := roots.Locate(h.roots, name)
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := m.prepare(p, []rangeEdit{{1, 1, 1, 4, "new"}}, "")
		if err != nil {
			t.Fatal(err)
		}
		defer r.there.closeOriginal()
		all = append(all, r)
	}
	h.put("c", "changed by somebody")
	if err := m.replaceAll(t.Context(), nil, all); !errors.Is(err, roots.ErrStale) {
		t.Errorf("got %v, want %v", err, roots.ErrStale)
	}
	for name, want := range map[string]string{"a": "old a", "b": "old b", "c": "changed by somebody"} {
		if got := h.get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if left, _ := os.ReadDir(m.journals.dir); len(left) > 0 {
		t.Errorf("left in the journal: %v", left)
	}
	h.noTemps()
}

// A host that serves a single call keeps nothing for undo, and changes the files all the same.
func TestSeveralFilesChangeInAHostOfOneCall(t *testing.T) {
	h := newFixture(t)
	h.put("a", "one\nold\n")
	m, err := New(Config{})(t.Context(), module.Deps{OneCall: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	c := moduletest.NewCall(t,
		toJSON(t, map[string]any{"paths": []string{"a"}, "edits": editAllArgs([]string{"a"}, nil, "new", 3)[3]}))
	c.Roots = h.roots
	if bad := c.Ask(t, m, "file_edit_all", nil); bad != "" || h.get("a") != "one\nnew\n" {
		t.Errorf("%s, the file is %q", bad, h.get("a"))
	}
}

// A journal that a killed host has left restores the files it changed, and no file that was changed since.
func TestAnInterruptedChangeIsUndone(t *testing.T) {
	h := newFixture(t)
	h.put("a", "new a")
	h.put("b", "old b")
	h.put("c", "changed by somebody")
	h.put("d", "created")
	dir := filepath.Join(t.TempDir(), "journal")
	entry := func(name, before, after string) journalEntry {
		return journalEntry{
			Root:   h.dir,
			Name:   name,
			Before: []byte(before),
			Exists: before != "",
			Mode:   0o640,
			After:  sum([]byte(after)),
		}
	}
	b, err := json.Marshal(
		[]journalEntry{entry("a", "old a", "new a"), entry("b", "old b", "new b"), entry("c", "old c", "new c"),
			entry("d", "", "created"), entry("e", "", "never made")},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	h.configure(Config{Journal: dir})
	for name, want := range map[string]string{"a": "old a", "b": "old b", "c": "changed by somebody"} {
		if got := h.get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if _, err := os.Stat(h.at("d")); !os.IsNotExist(err) {
		t.Errorf("d: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left in the journal: %v", left)
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
