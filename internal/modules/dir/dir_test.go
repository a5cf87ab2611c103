package dir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

// run calls a tool as the host does and decodes its output into out. The code
// of a refusal comes back as text.
func run(t *testing.T, rs tool.Roots, name string, args map[string]any, out any) string {
	t.Helper()
	m, err := New(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	offer, _ := m.Offer(t.Context(), module.Audience{})
	i := slices.IndexFunc(offer.Tools, func(tl tool.Tool) bool { return tl.Name == name })
	tl := offer.Tools[i]
	raw, err := schema.For(tl.In)
	if err != nil {
		t.Fatal(err)
	}
	in, err := schema.Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	given, _ := json.Marshal(args)
	if given, err = in.Canonical(given); err != nil {
		return "invalid_arguments"
	}
	res, err := tl.Run(
		context.Background(), &tool.Call{Name: name, Args: given, Roots: rs, Peer: struct{ tool.Peer }{}},
	)
	if err != nil {
		r, ok := errors.AsType[*tool.Refusal](err)
		if !ok {
			t.Fatalf("%s %v: %v is no refusal", name, args, err)
		}
		return string(r.Code)
	}
	b, _ := json.Marshal(res.Structured)
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return ""
}

func workspace(t *testing.T) (dir string, set *roots.Set) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "w")
	if err := os.MkdirAll(filepath.Join(filepath.Dir(dir), "out", "secret"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return dir, set
}

func TestList(t *testing.T) {
	dir, set := workspace(t)
	os.MkdirAll(dir+"/d/sub", 0o755)
	os.WriteFile(dir+"/d/b.txt", []byte("hello"), 0o644)
	os.WriteFile(dir+"/d/Z", nil, 0o644)
	os.WriteFile(dir+"/d/ä \n", []byte("x"), 0o644)
	os.WriteFile(dir+"/d/bad\xff", []byte("x"), 0o644)
	os.Symlink("b.txt", dir+"/d/link")
	os.Symlink(dir+"/d/sub", dir+"/d/linkdir")
	os.Symlink("nowhere", dir+"/d/dangling")
	os.Symlink("../../out/secret", dir+"/d/leads-out")
	syscall.Mkfifo(dir+"/d/pipe", 0o644)
	for _, path := range []string{"d", "./d", "d/", dir + "/d"} {
		var out listOut
		if code := run(t, set, "dir_list", map[string]any{"path": path}, &out); code != "" {
			t.Fatalf("%s: %s", path, code)
		}
		var got []string
		for _, e := range out.Entries {
			got = append(got, fmt.Sprintf("%s %v %d %s", e.Name, e.IsDir, e.Size, e.Kind))
			if want := strings.TrimSuffix(path, "/") + "/" + e.Name; e.Path != want {
				t.Errorf("path: got %q, want %q", e.Path, want)
			}
		}
		want := []string{
			"Z false 0 ",
			"b.txt false 5 ",
			`bad\xff false 1 `,
			"dangling false 0 link",
			"leads-out false 0 link",
			"link false 5 link",
			"linkdir true 0 link",
			"pipe false 0 pipe",
			"sub true 0 ",
			"ä \n false 1 ",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
		if out.Total != 10 || out.NextCursor != "" {
			t.Errorf("total %d, cursor %q", out.Total, out.NextCursor)
		}
	}
	var top listOut
	run(t, set, "dir_list", map[string]any{"path": "."}, &top)
	if len(top.Entries) != 1 || top.Entries[0].Path != "d" {
		t.Errorf("the first folder: %+v", top)
	}
}

func TestListRefuses(t *testing.T) {
	dir, set := workspace(t)
	os.WriteFile(dir+"/f", nil, 0o644)
	os.Symlink("../out", dir+"/out")
	os.Symlink("loop", dir+"/loop")
	for path, want := range map[string]string{
		"f": "not_a_directory", "missing": "not_found", "..": "outside_root", "/": "outside_root",
		"/etc": "outside_root",
		"out":  "outside_root", "out/secret": "outside_root", "loop": "unsupported", "f/x": "not_a_directory",
		"": "invalid_arguments",
	} {
		if got := run(t, set, "dir_list", map[string]any{"path": path}, nil); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
	for _, args := range []map[string]any{{"path": ".", "cursor": "?"}, {"path": ".", "limit": 0},
		{"path": ".", "limit": 100_000}} {
		if got := run(t, set, "dir_list", args, nil); got != "invalid_arguments" {
			t.Errorf("%v: got %q", args, got)
		}
	}
}

// Fifty thousand entries come once each, in order, a page at a time and in
// little memory, although some go and some come meanwhile.
func TestListManyEntries(t *testing.T) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // where making files is cheap
	}
	dir, set := workspace(t)
	n := 50_000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		n = 1_000_000
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for i := range n {
		if err := root.WriteFile(fmt.Sprintf("%07d", i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var first listOut
	run(t, set, "dir_list", map[string]any{"path": "."}, &first)
	runtime.ReadMemStats(&after)
	// The names pass through; what is held at a time is far less than this.
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(max(16<<20, 100*n)) {
		t.Errorf("a page took %d bytes of memory in all", used)
	}
	if len(first.Entries) != 200 || first.Total != n || first.Entries[199].Name != "0000199" {
		t.Fatalf("first page: %d entries of %d", len(first.Entries), first.Total)
	}
	seen, cursor := 0, ""
	for {
		var out listOut
		if code := run(t, set, "dir_list",
			map[string]any{"path": ".", "limit": 1000, "cursor": cursor}, &out); code != "" {
			t.Fatal(code)
		}
		for _, e := range out.Entries {
			if want := fmt.Sprintf("%07d", seen); e.Name != want {
				t.Fatalf("entry %d is %s, want %s", seen, e.Name, want)
			}
			seen++
		}
		if cursor = out.NextCursor; cursor == "" {
			break
		}
		if seen > 10_000 { // the rest would say the same
			root.Remove(fmt.Sprintf("%07d", seen-1)) // the one the cursor names
			root.WriteFile("0000000x", nil, 0o644)   // one that has been passed
			var next listOut
			run(t, set, "dir_list", map[string]any{"path": ".", "limit": 1, "cursor": cursor}, &next)
			if want := fmt.Sprintf("%07d", seen); next.Entries[0].Name != want {
				t.Errorf("after changes: %s, want %s", next.Entries[0].Name, want)
			}
			return
		}
	}
	t.Errorf("the listing ended after %d", seen)
}

// A page of long names ends early rather than growing without bound.
func TestListLongNames(t *testing.T) {
	dir, set := workspace(t)
	for i := range 300 {
		if err := os.WriteFile(fmt.Sprintf("%s/%0250d", dir, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	seen, cursor, pages := 0, "", 0
	for {
		var out listOut
		run(t, set, "dir_list", map[string]any{"path": ".", "limit": 300, "cursor": cursor}, &out)
		b, _ := json.Marshal(out)
		if len(b) > 32<<10 {
			t.Errorf("a page of %d bytes", len(b))
		}
		seen += len(out.Entries)
		pages++
		if cursor = out.NextCursor; cursor == "" {
			break
		}
	}
	if seen != 300 || pages < 2 {
		t.Errorf("%d entries on %d pages", seen, pages)
	}
}

func TestCreate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	dir, set := workspace(t)
	os.WriteFile(dir+"/f", nil, 0o644)
	os.Symlink("../out", dir+"/out")
	os.Symlink(dir+"/a", dir+"/abs")
	for _, c := range []struct{ path, want, lands string }{
		{"a/b/c", "", "a/b/c"}, {"a/b/c", "", "a/b/c"}, {"abs/d/", "", "a/d"}, {".", "", "."}, {"x/../y", "", "y"},
		{"f", "exists", ""}, {"a/.git/hooks", "denied", ""}, {"f/x", "not_a_directory", ""},
		{"out/new", "outside_root", ""}, {"../out/new", "outside_root", ""},
		{"new/../../elsewhere", "outside_root", ""}, {"/tmp/../elsewhere", "outside_root", ""},
		{strings.Repeat("n", 300), "invalid_arguments", ""},
	} {
		var out createOut
		if got := run(t, set, "dir_create", map[string]any{"path": c.path}, &out); got != c.want {
			t.Errorf("%.40q: got %q, want %q", c.path, got, c.want)
		}
		if c.lands == "" {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, c.lands)); err != nil || !info.IsDir() ||
			info.Mode().Perm() != 0o755 ||
			!out.Success ||
			out.Path != c.path {
			t.Errorf("%s: %+v, %v", c.path, out, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(dir)); len(entries) != 2 {
		t.Errorf("made outside: %v", entries)
	}
	if entries, _ := os.ReadDir(filepath.Dir(dir) + "/out"); len(entries) != 1 {
		t.Errorf("made outside: %v", entries)
	}
}
