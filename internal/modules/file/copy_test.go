package file

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestWriteModes(t *testing.T) {
	h := newFixture(t)
	tagOf := func(path string) any { return h.call("file_stat", "path", path)["etag"] }
	for _, c := range []struct {
		path string
		args []any
		want map[string]any
		is   string
	}{
		{"f", []any{"content", "a", "mode", "append"}, map[string]any{"created": true, "size": 1}, "a"},
		{"f", []any{"content", "b\n", "mode", "append"}, map[string]any{"created": nil, "size": 3}, "ab\n"},
		{"f", []any{"content", "0", "mode", "prepend"}, map[string]any{"size": 4}, "0ab\n"},
		{"f", []any{"content", "x", "mode", "create"}, map[string]any{"error": "!exists"}, "0ab\n"},
		{"f", []any{"content", "x", "if_absent", true}, map[string]any{"error": "!exists"}, "0ab\n"},
		{"f", []any{"content", "x", "mode", "insert"}, map[string]any{"error": "!invalid_arguments"}, "0ab\n"},
		{"f", []any{"content", "x", "if_match", "0123456789ab"}, map[string]any{"error": "!stale"}, "0ab\n"},
		// there was no file then
		{"f", []any{"content", "x", "if_match", tagOf("f")}, map[string]any{"error": "!stale"}, "0ab\n"},
		{"new", []any{"content", "x", "if_match", "0123456789ab"}, map[string]any{"error": "!stale"}, ""},
		{"sub/new", []any{"content", "x", "mode", "create"}, map[string]any{"created": true}, "x"},
		{"new", []any{"content", "x", "if_absent", true}, map[string]any{"created": true}, "x"},
	} {
		if c.args[len(c.args)-1] == nil {
			c.args[len(c.args)-1] = "000000000000"
		}
		h.want(h.call("file_write", append([]any{"path", c.path}, c.args...)...), c.want)
		if b, _ := os.ReadFile(h.at(c.path)); string(b) != c.is {
			t.Errorf("%v: %s holds %q, want %q", c.args, c.path, b, c.is)
		}
	}
	h.put("marked", bom+"a")
	h.call("file_write", "path", "marked", "content", bom+"0", "mode", "prepend")
	if h.get("marked") != bom+"0a" {
		t.Errorf("marked holds %q", h.get("marked"))
	}
	for _, mode := range []string{"overwrite", "append", "prepend"} {
		out := h.call("file_write", "path", "f", "content", "x", "mode", mode, "if_match", tagOf("f"))
		if out["error"] != nil || out["etag"] != tagOf("f") {
			t.Errorf("%s: %v, is %v", mode, out, tagOf("f"))
		}
	}
	big := strings.Repeat("x", 200_000) // its tag is not made of its content
	h.call("file_write", "path", "big", "content", big)
	for _, mode := range []string{"overwrite", "append"} {
		out := h.call("file_write", "path", "big", "content", big, "mode", mode, "if_match", tagOf("big"))
		if out["error"] != nil || out["etag"] != tagOf("big") {
			t.Errorf("big, %s: %v, is %v", mode, out, tagOf("big"))
		}
	}
	out := h.call("file_edit", "path", "big", "old_string", big+big, "new_string", big+"y", "if_match", tagOf("big"))
	if out["error"] != nil || out["etag"] != tagOf("big") {
		t.Errorf("big, edited: %.300v, is %v", out, tagOf("big"))
	}
	h.noTemps()
}

func TestCopy(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	h := newFixture(t)
	os.Chmod(h.put("f", "content"), 0o751)
	h.put("taken", "taken")
	os.Mkdir(h.at("d"), 0o755)
	os.Symlink("f", h.at("link"))
	os.Symlink(h.out+"/f", h.at("out"))
	h.put(h.out+"/f", "outside")
	for _, c := range []struct {
		from, to  string
		overwrite bool
		want      string
	}{
		{"f", "g", false, ""}, {"link", "deep/er/h", false, ""}, {"f", h.other + "/f", false, ""},
		{"f", "taken", true, ""},
		{"f", "g", false, "!exists"}, {"d", "e", false, "!is_a_directory"}, {"f", "d", true, "!is_a_directory"},
		{"missing", "x", false, "!not_found"},
		{"out", "x", false, "!outside_root"}, {"f", "out", true, "!outside_root"},
		{"f", "../out/x", false, "!outside_root"}, {"f", "d/", false, "!is_a_directory"},
	} {
		out := h.call("file_copy", "oldPath", c.from, "newPath", c.to, "overwrite", c.overwrite)
		if e, _ := out["error"].(string); e != c.want {
			t.Errorf("%s to %s: got %v, want %q", c.from, c.to, out, c.want)
		}
		if c.want == "" {
			h.want(out, map[string]any{"newPath": c.to, "size": 7, "etag": h.call("file_stat", "path", "f")["etag"]})
			if h.get(c.to) != "content" {
				t.Errorf("%s holds %q", c.to, h.get(c.to))
			}
		}
	}
	for path, want := range map[string]os.FileMode{"g": 0o751, "taken": 0o644} {
		if info, err := os.Stat(h.at(path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	h.noTemps()
}

func TestRenameOverwrite(t *testing.T) {
	h := newFixture(t)
	h.put("f", "f")
	h.put("g", "g")
	os.Mkdir(h.at("d"), 0o755)
	os.Symlink("f", h.at("link"))
	for _, c := range []struct{ from, to, want string }{
		{"f", "d", "!exists"}, {"d", "g", "!exists"}, {"f", "../out/f", "!outside_root"},
		{"f", "no/such", "!not_found"},
		{"f", "g", ""}, {"g", "link", ""}, {"link", "new", ""},
	} {
		out := h.call("file_rename", "oldPath", c.from, "newPath", c.to, "overwrite", true)
		if e, _ := out["error"].(string); e != c.want {
			t.Errorf("%s to %s: got %v, want %q", c.from, c.to, out, c.want)
		}
	}
	if h.get("new") != "f" {
		t.Errorf("new holds %q", h.get("new"))
	}
}

func TestStat(t *testing.T) {
	h := newFixture(t)
	os.Chmod(h.put("f", "12345"), 0o640)
	os.Link(h.at("f"), h.at("g"))
	os.Mkdir(h.at("d"), 0o700)
	os.Symlink("f", h.at("link"))
	os.Symlink("nowhere", h.at("dangling"))
	os.Symlink("../out", h.at("out"))
	syscall.Mkfifo(h.at("pipe"), 0o600)
	for path, want := range map[string]map[string]any{
		"f":        {"type": "file", "size": 5, "mode": "0640", "links": 2, "target": nil},
		"d":        {"type": "directory", "mode": "0700", "etag": nil, "links": nil},
		"link":     {"type": "file", "size": 5, "target": "f"},
		"dangling": {"type": "link", "target": "nowhere"},
		"out":      {"type": "link", "target": "../out"},
		"pipe":     {"type": "pipe", "etag": nil},
		".":        {"type": "directory"},
		"missing":  {"error": "!not_found"}, "../out": {"error": "!outside_root"},
	} {
		h.want(h.call("file_stat", "path", path), want)
	}
	if a, b := h.call("file_stat", "path", "f"), h.call("file_stat", "path", "link"); a["etag"] == nil ||
		a["etag"] != b["etag"] {
		t.Errorf("tags %v and %v", a["etag"], b["etag"])
	}
}

// Where nothing may be written the answer says so and nothing is left behind.
func TestReadOnlyFolder(t *testing.T) {
	h := newFixture(t)
	h.put("d/f", "x")
	os.Chmod(h.at("d"), 0o555)
	defer os.Chmod(h.at("d"), 0o755)
	if os.WriteFile(h.at("d/probe"), nil, 0o644) == nil {
		os.Remove(h.at("d/probe"))
		t.Skip("this user may write to read-only folders")
	}
	for _, args := range [][]any{
		{"file_write", "path", "d/f", "content", "y"}, {"file_write", "path", "d/new", "content", "y"},
		{"file_delete", "path", "d/f"},
		{"file_edit", "path", "d/f", "old_string", "x", "new_string", "y"},
		{"file_rename", "oldPath", "d/f", "newPath", "f"}, {"file_copy", "oldPath", "d/f", "newPath", "d/g"},
	} {
		h.want(h.call(args[0].(string), args[1:]...), map[string]any{"error": "!denied"})
	}
	if h.get("d/f") != "x" {
		t.Error("f was changed")
	}
}

// A name that is not UTF-8 cannot be written in JSON; it does not stop a call.
func TestNamesThatAreNotText(t *testing.T) {
	h := withTrash(t)
	if err := os.MkdirAll(h.at("d/\xff\xfe"), 0o755); err != nil {
		t.Skip(err)
	}
	h.put("d/\xff\xfe/bad\x80", "x")
	h.want(h.call("file_stat", "path", "d/\ufffd"), map[string]any{"error": "!not_found"})
	h.want(h.call("file_delete", "path", "d", "recursive", true), map[string]any{"undoable": true})
	h.want(h.call("file_undo"), map[string]any{"error": nil})
	if h.get("d/\xff\xfe/bad\x80") != "x" {
		t.Error("it is not back")
	}
}
