package filesystem

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// in opens folders and returns what calls tools in them: the text of a result
// or of a refusal.
func in(t *testing.T, dirs ...string) func(name string, args ...any) string {
	t.Helper()
	var list []roots.Dir
	for _, d := range dirs {
		list = append(list, roots.Dir{Path: d})
	}
	set, err := roots.Open(list, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	byName := map[string]tool.Tool{}
	for _, one := range new(fileServer).definitions() {
		byName[one.Aliases[0]] = one
	}
	return func(name string, args ...any) string {
		t.Helper()
		c := moduletest.NewCall(t, args...)
		c.Roots = set
		res, err := c.Tool(t.Context(), byName[name])
		if err != nil {
			return "Error: " + errorText(err)
		}
		s, _ := rawjson.Get(res.Raw, "structuredContent")
		s, _ = rawjson.Get(s, "content")
		text, _ := rawjson.String(s)
		return text
	}
}

func laid(t *testing.T, dir, name, content string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// The optional arguments of design E choose lines by number.
func TestOffsetAndLimit(t *testing.T) {
	dir := t.TempDir()
	call := in(t, dir)
	laid(t, dir, "a", "1\n2\n3\n4\n")
	laid(t, dir, "b", "x\ny")
	for _, c := range []struct {
		args []any
		want string
	}{
		{[]any{"path", "a", "offset", 2}, "2\n3\n4"},
		{[]any{"path", "a", "limit", 2}, "1\n2"},
		{[]any{"path", "a", "offset", 3, "limit", 1}, "3"},
		{[]any{"path", "a", "offset", 9}, ""},
		{
			[]any{"path", "a", "head", 1, "offset", 1},
			"Error: Cannot specify offset or limit together with head or tail",
		},
		{[]any{"path", "a", "tail", 1, "limit", 1}, "Error: Cannot specify offset or limit together with head or tail"},
	} {
		if got := call("read_file", c.args...); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
	if got, want := call("read_multiple_files", "paths", []string{"a", "b"}, "offset", 2, "limit", 1),
		"a:\n2\n\n---\nb:\ny\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLimitsOfSize(t *testing.T) {
	dir := t.TempDir()
	call := in(t, dir)
	laid(t, dir, "big", strings.Repeat("0123456789abcde\n", maxBytes/16+1))
	for name, args := range map[string][]any{
		"read_file":       {"path", "big"},
		"read_text_file":  {"path", "big", "tail", 1e9},
		"read_media_file": {"path", "big"},
		"edit_file":       {"path", "big", "edits", []map[string]string{{"oldText": "0", "newText": "1"}}},
		"write_file":      {"path", "new", "content", strings.Repeat("x", maxBytes+1)},
	} {
		if got := call(name, args...); !strings.HasPrefix(got, "Error: ") || !strings.Contains(got, "too large") {
			t.Errorf("%s: got %.100q", name, got)
		}
	}
	if got := call("read_file", "path", "big", "tail", 2); got != "0123456789abcde\n0123456789abcde\n" {
		t.Errorf("got %q", got)
	}
	if got := call("read_multiple_files", "paths", []string{"big", "none"}); strings.Count(got, "Error - ") != 2 {
		t.Errorf("got %.200q", got)
	}
}

// Protected names are refused whatever the tool, and no refusal names a folder
// that the caller did not.
func TestNothingIsSaidOfTheFolders(t *testing.T) {
	dir, secret := t.TempDir(), t.TempDir()
	call := in(t, dir)
	laid(t, dir, ".env", "KEY=1")
	laid(t, secret, "s", "secret")
	if err := os.Symlink(filepath.Join(secret, "s"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "dirlink")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", "dirlink/s", "dirlink/new", "../x", secret + "/s", "/", ".env", "none",
		"a/../../b", `C:\x`} {
		for name, args := range map[string][]any{
			"read_file": {"path", path}, "read_media_file": {"path", path},
			"write_file":       {"path", path, "content", "x"},
			"edit_file":        {"path", path, "edits", []map[string]string{{"oldText": "a", "newText": "b"}}},
			"create_directory": {"path", filepath.Join(path, "d")}, "list_directory": {"path", path},
			"directory_tree": {"path", path},
			"search_files":   {"path", path, "pattern", "*"}, "get_file_info": {"path", path},
			"move_file": {"source", path, "destination", "moved"},
		} {
			if path == ".env" && name == "get_file_info" || path == "link" && (name == "move_file" ||
				name == "get_file_info") || path == "none" && (name == "write_file" || name == "create_directory") {
				continue // allowed, or there is nothing to refuse
			}
			got := call(name, args...)
			if !strings.HasPrefix(got, "Error: ") || strings.Contains(got, dir) || strings.Contains(got, secret) &&
				!strings.Contains(path, secret) {
				t.Errorf("%s %s: got %q", name, path, got)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(secret, "s")); err != nil || string(b) != "secret" {
		t.Errorf("outside the folder there is now %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".env")); err != nil || string(b) != "KEY=1" {
		t.Errorf("the protected file is now %q, %v", b, err)
	}
}

func TestMovingBetweenFolders(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	call := in(t, a, b)
	laid(t, a, "f", "content")
	if got := call("move_file", "source", filepath.Join(a, "f"), "destination",
		filepath.Join(b, "g")); !strings.HasPrefix(
		got,
		"Successfully moved",
	) {
		t.Fatal(got)
	}
	if got := call("read_file", "path", filepath.Join(b, "g")); got != "content" {
		t.Errorf("got %q", got)
	}
	if got := call("read_file", "path", filepath.Join(a, "f")); !strings.Contains(got, "ENOENT") {
		t.Errorf("it is still there: %q", got)
	}
	laid(t, a, "f", "other")
	if got := call("move_file", "source", filepath.Join(a, "f"), "destination",
		filepath.Join(b, "g")); !strings.Contains(
		got,
		"already exists",
	) {
		t.Errorf("got %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(b, ".gatehouse-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWritingKeepsTheModeAndReadOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	call := in(t, dir)
	p := laid(t, dir, "run.sh", "a")
	if err := os.Chmod(p, 0o750); err != nil {
		t.Fatal(err)
	}
	call("write_file", "path", "run.sh", "content", "b")
	if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".gatehouse-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// patched applies a unified diff to lines.
func patched(t *testing.T, old []string, diff string) string {
	t.Helper()
	var out []string
	at, added := 0, false
	for line := range strings.Lines(diff) {
		var from, n int
		switch {
		case strings.HasPrefix(line, "@@ "):
			if _, err := fmt.Sscanf(line, "@@ -%d,%d ", &from, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if n > 0 {
				from--
			}
			out = append(out, old[at:from]...)
			at = from
		case strings.HasPrefix(line, "--- p\t"), strings.HasPrefix(line, "+++ p\t"):
		case line[0] == ' ', line[0] == '-':
			if at >= len(old) || strings.TrimSuffix(old[at], "\n") != strings.TrimSuffix(line[1:], "\n") {
				t.Fatalf("%q is not line %d", line, at)
			}
			if line[0] == ' ' {
				out = append(out, old[at])
			}
			at++
		case line[0] == '+':
			out = append(out, line[1:])
		case line[0] == '\\' && added: // otherwise it is about a line of old
			out[len(out)-1] = strings.TrimSuffix(out[len(out)-1], "\n")
		}
		added = line[0] == '+'
	}
	return strings.Join(append(out, old[at:]...), "")
}

// A diff, applied to the old text, gives the new one.
func FuzzDiff(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nc\nd")
	f.Add("", "x")
	f.Add("x\n", "")
	f.Add("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n13\n")
	f.Fuzz(func(t *testing.T, before, after string) {
		if len(before)+len(after) > 4000 {
			return
		}
		old, now := splitLines([]byte(before)), splitLines([]byte(after))
		if got := patched(t, old, unified("p", []byte(before), []byte(after))); got != strings.Join(now, "") {
			t.Fatalf("%q and %q: got %q", before, after, got)
		}
		if d := unified("p", []byte(before), []byte(after)); strings.Contains(
			d, "@@",
		) == (strings.Join(old, "") == strings.Join(now, "")) {
			t.Fatalf("%q and %q: %s", before, after, d)
		}
	})
}

// The last lines are those that splitting the whole gives.
func FuzzTail(f *testing.F) {
	f.Add("a\nb\n", 1)
	f.Add("\n\n", 2)
	f.Add(strings.Repeat("x\n", 70_000), 66_000)
	f.Fuzz(func(t *testing.T, content string, n int) {
		if n < 1 || strings.Contains(content, "\r") {
			return
		}
		got, err := tail(bytes.NewReader([]byte(content)), int64(len(content)), float64(n))
		if err != nil {
			t.Fatal(err)
		}
		all := strings.SplitAfter(content, "\n")
		if all[len(all)-1] == "" {
			all = all[:len(all)-1]
		}
		if want := strings.Join(all[max(len(all)-n, 0):], ""); string(got) != want {
			t.Fatalf("the last %d of %.80q: got %.80q, want %.80q", n, content, got, want)
		}
	})
}

func FuzzLossy(f *testing.F) {
	f.Add([]byte("\xff\xe2\x82x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := toValidUTF8(b)
		if !utf8.ValidString(s) || utf8.Valid(b) && s != string(b) {
			t.Fatalf("% x became %q", b, s)
		}
	})
}

func ExampleNew() {
	for _, t := range new(fileServer).definitions()[:2] {
		fmt.Println(t.Name, t.Aliases)
	}
	// Output:
	// filesystem_read_file [read_file]
	// filesystem_read_text_file [read_text_file]
}

// What is protected by the name of the directory above it stays protected when
// that is to be moved.
func TestProtectionIsNotMovedAway(t *testing.T) {
	dir := t.TempDir()
	call := in(t, dir)
	if err := os.Mkdir(filepath.Join(dir, ".aws"), 0o755); err != nil {
		t.Fatal(err)
	}
	laid(t, dir, ".aws/credentials", "secret")
	if got := call("move_file", "source", ".aws", "destination", "aws2"); !strings.Contains(got, "EACCES") ||
		!strings.Contains(got, "credentials, which is protected") {
		t.Errorf("got %q", got)
	}
	if got := call("read_text_file", "path", "aws2/credentials"); !strings.HasPrefix(got, "Error: ENOENT") {
		t.Errorf("got %q", got)
	}
}
