package file

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/module"
)

// configure makes the house anew, with a configuration of the module.
func (h *house) configure(cfg Config) {
	h.t.Helper()
	h.cfg = &cfg
	h.use(h.roots)
}

// withTrash gives the house a trash on the same file system.
func withTrash(t *testing.T) *house {
	h := newHouse(t)
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
	h := newHouse(t)
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

// What somebody else did is not undone on the way.
func TestUndoLeavesOthersAlone(t *testing.T) {
	h := newHouse(t)
	h.put("f", "one")
	h.call("file_edit", "path", "f", "old_string", "one", "new_string", "two")
	h.put("f", "somebody else's")
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

	h.owner = "somebody else"
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
	for i := range undoMost + 10 {
		h.call("file_write", "path", "f", "content", fmt.Sprint(i))
	}
	if got := snapshot(t, trash); strings.Contains(got, "/f ") {
		t.Errorf("the trash still holds %s", got)
	}
	out := h.call("file_undo", "steps", undoMost)
	if n := len(out["undone"].([]any)); n != undoMost || h.get("f") != "9" {
		t.Errorf("%d steps, f holds %s", n, h.get("f"))
	}
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})

	big := strings.Repeat("x", undoFile)
	for i := range 8 {
		h.put(fmt.Sprint("big", i), big)
		h.call("file_write", "path", fmt.Sprint("big", i), "content", "")
	}
	out = h.call("file_undo", "steps", 50)
	if n := len(out["undone"].([]any)); n != undoBytes/undoFile {
		t.Errorf("%d contents of 8 MB were kept", n)
	}
	h.put("huge", big+"x")
	h.want(h.call("file_delete", "path", "huge"), map[string]any{"undoable": false})
	h.want(h.call("file_undo"), map[string]any{"error": "!not_found"})
}

// A change that is not kept ends what is known of the file.
func TestUndoStopsAtWhatIsNotKept(t *testing.T) {
	h := newHouse(t)
	h.put("f", "one")
	h.call("file_write", "path", "f", "content", strings.Repeat("x", undoFile+1))
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
	for path, want := range map[string]string{"repo": "!denied", "keys": "!denied", "keys/sub/id_rsa": "!denied", "repo/.git": "!denied", ".": "!denied"} {
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
	h.configure(Config{Trash: "none"})
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
	h := newHouse(t)
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
	if _, err := New(t.Context(), module.Deps{Config: func(into any) error { into.(*Config).Protect = []string{"["}; return nil }}); err == nil {
		t.Error("a broken pattern is taken")
	}
}
