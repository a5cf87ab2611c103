package file

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/module"
)

// configure makes the module again, with a configuration of the module.
func (h *fixture) configure(cfg Config) {
	h.t.Helper()
	h.cfg = &cfg
	h.use(h.roots)
}

// withTrash gives the fixture a trash on the same file system.
func withTrash(t *testing.T) *fixture {
	h := newFixture(t)
	h.configure(Config{Trash: filepath.Join(filepath.Dir(h.dir), "trash")})
	return h
}

// snapshot tells what is below a folder: names, modes and contents.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		info, _ := d.Info()
		fmt.Fprintf(&b, "%s %v", strings.TrimPrefix(path, dir), info.Mode())
		switch {
		case info.Mode().IsRegular():
			content, _ := os.ReadFile(path)
			fmt.Fprintf(&b, " %q", content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			b.WriteString(" " + target)
		}
		b.WriteString("\n")
		return nil
	})
	return b.String()
}

// Whatever was done, taking it back leads to the bytes, names and modes there
// were.
func TestUndoEverything(t *testing.T) {
	h := withTrash(t)
	os.Chmod(h.put("script", "one\ntwo\r\n"), 0o751)
	h.put("crlf", bom+"a\r\nb\nc")
	h.put("d/sub/f", "deep")
	h.put("empty", "")
	os.Symlink("script", h.at("link"))
	os.Symlink("nowhere", h.at("d/dangling"))
	os.Mkdir(h.at("void"), 0o700)
	steps := []struct {
		tool string
		args []any
	}{
		{"file_edit", []any{"path", "script", "old_string", "one", "new_string", "1"}},
		{"file_edit", []any{"path", "link", "old_string", "two", "new_string", "2"}},
		{"file_write", []any{"path", "crlf", "content", "new"}},
		{"file_write", []any{"path", "crlf", "content", "er", "mode", "append"}},
		{"file_write", []any{"path", "fresh", "content", "x", "mode", "create"}},
		{"file_write", []any{"path", "empty", "content", "no more"}},
		{"file_copy", []any{"oldPath", "script", "newPath", "copy"}},
		{"file_copy", []any{"oldPath", "script", "newPath", "crlf", "overwrite", true}},
		{"file_rename", []any{"oldPath", "crlf", "newPath", "d/crlf"}},
		{"file_rename", []any{"oldPath", "d/crlf", "newPath", "script", "overwrite", true}},
		{"file_rename", []any{"oldPath", "d", "newPath", "e"}},
		{"file_delete", []any{"path", "link"}},
		{"file_delete", []any{"path", "empty"}},
		{"file_delete", []any{"path", "void"}},
		{"file_delete", []any{"path", "e", "recursive", true}},
	}
	var states []string
	for _, s := range steps {
		states = append(states, snapshot(t, h.dir))
		out := h.call(s.tool, s.args...)
		if out["error"] != nil || out["undoable"] == false {
			t.Fatalf("%s %v: %v", s.tool, s.args, out)
		}
	}
	for i := len(steps) - 1; i >= 0; i-- {
		if out := h.call("file_undo"); out["error"] != nil {
			t.Fatalf("taking back %s %v: %v", steps[i].tool, steps[i].args, out)
		}
		if got := snapshot(t, h.dir); got != states[i] {
			t.Fatalf("after taking back %s %v:\n%swant\n%s", steps[i].tool, steps[i].args, got, states[i])
		}
	}
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
	h.noTemps()
}

func TestUndoOfOnePathAndSeveralSteps(t *testing.T) {
	h := newFixture(t)
	for i := range 4 {
		h.call("file_write", "path", "a", "content", fmt.Sprint("a", i))
		h.call("file_write", "path", "b", "content", fmt.Sprint("b", i))
	}
	h.call("file_undo", "path", "a", "steps", 2)
	if h.get("a") != "a1" || h.get("b") != "b3" {
		t.Errorf("a %s, b %s", h.get("a"), h.get("b"))
	}
	out := h.call("file_undo", "path", h.at("b"), "steps", 50)
	if _, err := os.Stat(h.at("b")); err == nil || len(out["undone"].([]any)) != 4 {
		t.Errorf("b is still there: %v", out)
	}
	h.want(h.call("file_undo", "path", "b"), map[string]any{"error": "!not_found"})
	h.want(h.call("file_undo", "path", "../out/f"), map[string]any{"error": "!outside_root"})
}

// What another program did is not undone on the way.
func TestUndoLeavesOthersAlone(t *testing.T) {
	h := newFixture(t)
	h.put("f", "one")
	h.call("file_edit", "path", "f", "old_string", "one", "new_string", "two")
	h.put("f", "another program's")
	h.want(h.call("file_undo"), map[string]any{"error": "!stale"})
	os.Remove(h.at("f"))
	h.want(h.call("file_undo"), map[string]any{"error": "!stale"})
	if _, err := os.Stat(h.at("f")); err == nil {
		t.Error("f is back")
	}
	h.put("f", "two")
	h.want(h.call("file_undo"), map[string]any{"error": nil}) // it is what the edit left again
	h.put("g", "x")
	h.call("file_delete", "path", "g")
	h.put("g", "another")
	h.want(h.call("file_undo"), map[string]any{"error": "!stale"})
	os.Remove(h.at("g"))

	h.owner = "other"
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
	h.owner = ""
	h.want(h.call("file_undo"), map[string]any{"error": nil})
	if h.get("g") != "x" {
		t.Errorf("g holds %q", h.get("g"))
	}
}

// The memory for it is bounded, and what falls out is no longer in the trash.
func TestUndoLimits(t *testing.T) {
	h := withTrash(t)
	h.put("old/f", "x")
	h.call("file_delete", "path", "old", "recursive", true)
	trash := filepath.Join(filepath.Dir(h.dir), "trash")
	if n := strings.Count(snapshot(t, trash), "/old") + strings.Count(snapshot(t, trash), "/f "); n != 1 {
		t.Fatalf("the trash holds %s", snapshot(t, trash))
	}
	for i := range maxUndoChanges + 10 {
		h.call("file_write", "path", "f", "content", fmt.Sprint(i))
	}
	if got := snapshot(t, trash); strings.Contains(got, "/f ") {
		t.Errorf("the trash still holds %s", got)
	}
	out := h.call("file_undo", "steps", maxUndoChanges)
	if n := len(out["undone"].([]any)); n != maxUndoChanges || h.get("f") != "9" {
		t.Errorf("%d steps, f holds %s", n, h.get("f"))
	}
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})

	big := strings.Repeat("x", maxUndoContent)
	for i := range 8 {
		h.put(fmt.Sprint("big", i), big)
		h.call("file_write", "path", fmt.Sprint("big", i), "content", "")
	}
	out = h.call("file_undo", "steps", 50)
	if n := len(out["undone"].([]any)); n != maxUndoBytes/maxUndoContent {
		t.Errorf("%d contents of 8 MB were kept", n)
	}
	h.put("vast", "")
	if err := os.Truncate(filepath.Join(h.dir, "vast"), trashBytes+1); err != nil {
		t.Fatal(err)
	}
	h.want(h.call("file_delete", "path", "vast"), map[string]any{"undoable": false})
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
}

// A change that is not kept ends what is known of the file.
func TestUndoStopsAtWhatIsNotKept(t *testing.T) {
	h := newFixture(t)
	h.put("f", "one")
	h.call("file_write", "path", "f", "content", strings.Repeat("x", maxUndoContent+1))
	h.call("file_write", "path", "f", "content", "three")
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
	if h.get("f") != "three" {
		t.Error("f was changed")
	}
}

func TestDeleteRecursive(t *testing.T) {
	h := withTrash(t)
	h.put("d/a/b", "x")
	h.put("repo/.git/config", "x")
	h.put("keys/sub/id_rsa", "x")
	h.put("outer/f", "x")
	os.Symlink(h.out, h.at("d/out"))
	h.put(h.out+"/f", "outside")
	for path, want := range map[string]string{"repo": "!denied", "keys": "!denied", "keys/sub/id_rsa": "!denied",
		"repo/.git": "!denied", ".": "!denied"} {
		h.want(h.call("file_delete", "path", path, "recursive", true), map[string]any{"error": want})
	}
	h.want(h.call("file_delete", "path", "d"), map[string]any{"error": "!not_empty"})
	h.want(h.call("file_delete", "path", "d", "recursive", true), map[string]any{"undoable": true})
	if _, err := os.Lstat(h.at("d")); err == nil {
		t.Error("d is still there")
	}
	h.put("d", "in the way")
	h.want(h.call("file_undo"), map[string]any{"error": "!stale"})
	os.Remove(h.at("d"))
	h.want(h.call("file_undo"), map[string]any{"error": nil})
	if h.get("d/a/b") != "x" || h.get(h.out+"/f") != "outside" {
		t.Error("not all is back")
	}
	// Without a trash it is gone.
	h.configure(Config{Trash: ""})
	h.want(h.call("file_delete", "path", "d", "recursive", true), map[string]any{"undoable": false})
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
	if h.get(h.out+"/f") != "outside" {
		t.Error("a link was followed")
	}
}

// Closing empties the trash, and what a dead server left goes after a day.
func TestTrashIsEmptied(t *testing.T) {
	h := withTrash(t)
	dir := filepath.Join(filepath.Dir(h.dir), "trash")
	h.put("d/f", "x")
	h.call("file_delete", "path", "d", "recursive", true)
	if err := h.module.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestOtherGuard(t *testing.T) {
	h := newFixture(t)
	h.put(".env", "secret")
	h.put("plain", "x")
	h.want(h.call("file_read", "path", ".env"), map[string]any{"error": "!denied"})
	h.want(h.call("file_copy", "oldPath", ".env", "newPath", "copy"), map[string]any{"error": "!denied"})
	h.want(h.call("file_rename", "oldPath", ".env", "newPath", "copy"), map[string]any{"error": "!denied"})
	h.want(h.call("file_rename", "oldPath", "plain", "newPath", ".git/hooks"), map[string]any{"error": "!denied"})
	h.want(h.call("file_write", "path", "sub/.env.local", "content", "x"), map[string]any{"error": "!denied"})
	h.want(h.call("file_stat", "path", ".env"), map[string]any{"type": "file", "etag": nil})
	h.configure(Config{Protect: []string{"plain"}})
	h.want(h.call("file_read", "path", ".env"), map[string]any{"content": "secret"})
	h.want(h.call("file_read", "path", "plain"), map[string]any{"error": "!denied"})
	if _, err := New(Config{Protect: []string{"["}})(t.Context(), module.Deps{}); err == nil {
		t.Error("a broken pattern is taken")
	}
}

// A host clears away what dead hosts left in the trash, and nothing of one that
// lives, however long ago it put something there.
func TestTrashOfALivingHostStays(t *testing.T) {
	h := withTrash(t)
	trash := filepath.Join(filepath.Dir(h.dir), "trash")
	h.put("d/f", "x")
	h.want(h.call("file_delete", "path", "d", "recursive", true), map[string]any{"undoable": true})
	old := time.Now().Add(-3 * trashAge)
	left := filepath.Join(trash, rand.Text())
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(trash + "/*")
	if err != nil || len(folders) != 2 {
		t.Fatalf("%v, %v", folders, err)
	}
	for _, f := range folders {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	living := h.tools
	h.use(h.roots) // a second host
	h.put("e/f", "y")
	h.call("file_delete", "path", "e", "recursive", true)
	if _, err := os.Stat(left); err == nil {
		t.Error("what a dead host left is still there")
	}
	h.tools = living
	if out := h.call("file_undo"); fmt.Sprint(out["undone"]) != "[restored d]" || h.get("d/f") != "x" {
		t.Errorf("got %v", out)
	}
}

// What is too large for memory is kept in the trash, and comes back with its
// mode. A note says so where that cannot be.
func TestLargeChangesAreUndone(t *testing.T) {
	h := withTrash(t)
	big := strings.Repeat("0123456789abcdef\n", maxUndoContent/16)
	for _, c := range []struct {
		name string
		do   func() map[string]any
	}{
		{"file_write", func() map[string]any { return h.call("file_write", "path", "f", "content", "short") }},
		{"file_write append", func() map[string]any {
			return h.call("file_write", "path", "f", "content", "more",
				"mode", "append")
		}},
		{"file_edit", func() map[string]any {
			return h.call("file_edit", "path", "f", "old_string", big[:170], "new_string", "short\n", "near_line", 1)
		}},
		{"file_copy", func() map[string]any {
			return h.call("file_copy", "oldPath", "other", "newPath", "f", "overwrite", true)
		}},
		{"file_rename", func() map[string]any {
			return h.call("file_rename", "oldPath", "other", "newPath", "f", "overwrite", true)
		}},
		{"file_delete", func() map[string]any { return h.call("file_delete", "path", "f") }},
	} {
		h.put("f", big)
		h.put("other", "x")
		if err := os.Chmod(filepath.Join(h.dir, "f"), 0o640); err != nil {
			t.Fatal(err)
		}
		out := c.do()
		if out["error"] != nil || out["note"] != nil {
			t.Errorf("%s: %v", c.name, out)
		}
		if out := h.call("file_undo"); out["error"] != nil || h.get("f") != big {
			t.Errorf("%s: not as before, %v", c.name, out)
		}
		if info, err := os.Stat(filepath.Join(h.dir, "f")); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", c.name, info.Mode(), err)
		}
	}
	if kept := snapshot(t, filepath.Join(filepath.Dir(h.dir), "trash")); strings.Count(kept, "\n") != 2 {
		t.Errorf("the trash still holds\n%.300s", kept)
	}
	h.configure(Config{Trash: ""})
	h.put("f", big)
	for _, out := range []map[string]any{
		h.call("file_write", "path", "f", "content", "more", "mode", "append"),
		h.call("file_edit", "path", "f", "old_string", big[:170], "new_string", "short\n", "near_line", 1),
		h.call("file_copy", "oldPath", "other", "newPath", "f", "overwrite", true),
	} {
		if note := fmt.Sprint(out["note"]); !strings.Contains(note, "file_undo cannot undo this") {
			t.Errorf("note: %q", note)
		}
	}
}

// A host that ends with the call promises no undo.
func TestAHostOfOneCallPromisesNoUndo(t *testing.T) {
	h := withTrash(t)
	cfg := *h.cfg
	m, err := New(cfg)(t.Context(), module.Deps{OneCall: true})
	if err != nil {
		t.Fatal(err)
	}
	offer, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range offer.Tools {
		h.tools[one.Name] = one
	}
	h.put("f", "x")
	h.put("d/f", "x")
	h.want(h.call("file_delete", "path", "f"), map[string]any{"undoable": false})
	h.want(h.call("file_delete", "path", "d", "recursive", true), map[string]any{"undoable": false})
	if _, err := os.Stat(cfg.Trash); err == nil {
		t.Error("something was kept that nothing will take back")
	}
}
