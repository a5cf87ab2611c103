package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/tool"
)

func put(t testing.TB, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(out listOut) string {
	var s []string
	for _, e := range out.Entries {
		s = append(s, e.Name)
	}
	return strings.Join(s, " ")
}

func TestListChooses(t *testing.T) {
	dir, set := workspace(t)
	put(t, dir, ".gitignore", "*.log\nbuild/\n")
	put(t, dir, ".git/config", "")
	put(t, dir, "build/x", "")
	put(t, dir, "a.log", "")
	put(t, dir, "small.go", "1")
	put(t, dir, "large.go", "12345")
	put(t, dir, "a_test.go", "123")
	for i, name := range []string{"large.go", "small.go", "a_test.go", ".gitignore"} {
		when := time.Unix(int64(1e9-i), 0)
		os.Chtimes(filepath.Join(dir, name), when, when)
	}
	for _, c := range []struct {
		args    map[string]any
		want    string
		ignored int
	}{
		{map[string]any{}, ".gitignore a_test.go large.go small.go", 3},
		{map[string]any{"all": true}, ".git .gitignore a.log a_test.go build large.go small.go", 0},
		{map[string]any{"glob": "*.go,!*_test.go"}, "large.go small.go", 3},
		{map[string]any{"sort": "size", "glob": "*.go"}, "large.go a_test.go small.go", 3},
		{map[string]any{"sort": "mtime"}, "large.go small.go a_test.go .gitignore", 3},
	} {
		c.args["path"] = "."
		var out listOut
		if code := run(t, set, "dir_list", c.args, &out); code != "" || names(out) != c.want ||
			out.Ignored != c.ignored {
			t.Errorf("%v: got %s %q, %d ignored, want %q", c.args, code, names(out), out.Ignored, c.want)
		}
		// One at a time gives the same.
		var all []string
		c.args["limit"] = 1
		for {
			var out listOut
			run(t, set, "dir_list", c.args, &out)
			all = append(all, names(out))
			if out.NextCursor == "" {
				break
			}
			c.args["cursor"] = out.NextCursor
		}
		if strings.Join(all, " ") != c.want {
			t.Errorf("%v: one at a time %q", c.args, all)
		}
	}
	for _, bad := range []map[string]any{{"depth": 2, "sort": "size"}, {"glob": "{"}, {"cursor": "!", "depth": 2},
		{"cursor": "bm90aGluZw"}, {"cursor": "bm90aGluZw", "depth": 2}, {"cursor": "bm90aGluZw", "glob": "*",
			"depth": 2}, {"cursor": "nonsense"}, {"cursor": "YQ", "sort": "size"}, {"sort": "colour"}} {
		bad["path"] = "."
		if code := run(t, set, "dir_list", bad, nil); code != "invalid_arguments" {
			t.Errorf("%v: %q", bad, code)
		}
	}
}

func TestTree(t *testing.T) {
	dir, set := workspace(t)
	put(t, dir, "cmd/app/main.go", "package main\n")
	put(t, dir, "src/a/one.go", strings.Repeat("x", 1500))
	put(t, dir, "src/a/two.go", "")
	put(t, dir, "src/b/deep/er/f", "")
	put(t, dir, "src/z", "1")
	put(t, dir, "out/x", "")
	put(t, dir, ".gitignore", "out\n")
	os.Symlink("src", dir+"/link")
	os.Mkdir(dir+"/void", 0o755)
	for _, c := range []struct {
		args map[string]any
		want string
	}{
		{map[string]any{"depth": 2}, ".gitignore 4\ncmd/app/\n main.go 13\nlink (link)\nsrc/\n a/ (2 files)\n " +
			"b/deep/er/ (1 file)\n z 1\nvoid/\n[1 ignored; all=true shows them]\n"},
		{map[string]any{"depth": 3}, ".gitignore 4\ncmd/app/\n main.go 13\nlink (link)\nsrc/\n a/\n  one.go 1.5k\n  " +
			"two.go 0\n b/deep/er/\n  f 0\n z 1\nvoid/\n[1 ignored; all=true shows them]\n"},
		{map[string]any{"depth": 2, "path": "src/a"}, "one.go 1.5k\ntwo.go 0\n"},
		{map[string]any{"depth": 2, "path": "void"}, "[empty]\n"},
		{map[string]any{"depth": 9, "glob": "*.go"}, "cmd/app/main.go\nsrc/a/one.go\nsrc/a/two.go\n"},
		{map[string]any{"depth": 2, "glob": "*.go"}, "[no file matches]\n"},
		{map[string]any{"depth": 9, "glob": "src/**"}, "src/a/one.go\nsrc/a/two.go\nsrc/b/deep/er/f\nsrc/z\n"},
	} {
		if c.args["path"] == nil {
			c.args["path"] = "."
		}
		if got := treeText(t, set, c.args); got != c.want {
			t.Errorf("%v: got\n%swant\n%s", c.args, got, c.want)
		}
	}
}

func treeText(t *testing.T, set tool.Roots, args map[string]any) string {
	t.Helper()
	var out listOut
	if code := run(t, set, "dir_list", args, &out); code != "" {
		return code
	}
	return out.Content
}

// Pages of a tree, put together, are the tree, whatever their size.
func TestTreePages(t *testing.T) {
	dir, set := workspace(t)
	for i := range 60 {
		put(t, dir, fmt.Sprintf("%02d/%s/f%d", i%10, strings.Repeat("sub/", i%4)+"x", i), "")
	}
	whole := treeText(t, set, map[string]any{"path": ".", "depth": 9, "limit": 1000})
	if strings.Contains(whole, "cursor") || strings.Count(whole, "\n") < 80 {
		t.Fatalf("not whole:\n%s", whole)
	}
	for _, limit := range []int{1, 2, 7, 50} {
		var got strings.Builder
		cursor := ""
		for range 500 {
			var out listOut
			if code := run(t, set, "dir_list",
				map[string]any{"path": ".", "depth": 9, "limit": limit, "cursor": cursor}, &out); code != "" {
				t.Fatal(code)
			}
			for line := range strings.Lines(out.Content) {
				if !strings.Contains(line, "(continued)") && !strings.HasPrefix(line, "[") {
					got.WriteString(line)
				}
			}
			if cursor = out.NextCursor; cursor == "" {
				break
			}
		}
		if got.String() != whole {
			t.Errorf("limit %d: got\n%swant\n%s", limit, got.String(), whole)
		}
	}
}

// The first page of a large tree is small.
func TestLargeTree(t *testing.T) {
	dir, set := workspace(t)
	for i := range 3000 {
		put(t, dir, fmt.Sprintf("some-directory-%d/another-%d/file-with-a-long-name-%d", i%40, i%300, i), "")
	}
	for _, depth := range []int{2, 3, 100} {
		if got := treeText(t, set, map[string]any{"path": ".", "depth": depth, "limit": 1000}); len(got) > 8000 ||
			len(got) < 2000 {
			t.Errorf("depth %d: a page of %d bytes", depth, len(got))
		}
	}
}

func TestSize(t *testing.T) {
	dir, set := workspace(t)
	put(t, dir, "a/x", strings.Repeat("x", 2000))
	put(t, dir, "a/b/y", "12345")
	put(t, dir, "top", "123")
	put(t, dir, ".gitignore", "a")
	os.Link(dir+"/a/x", dir+"/second-name")
	os.Symlink("a", dir+"/link")
	var out sizeOut
	if code := run(t, set, "dir_size", map[string]any{"path": "."}, &out); code != "" {
		t.Fatal(code)
	}
	if out.Bytes != 2009 || out.Files != 6 || out.Dirs != 2 ||
		!strings.HasPrefix(out.Content, ".: 2.0k in 6 files and 2 directories\n") ||
		!strings.Contains(out.Content, "top\n") {
		t.Errorf("%+v", out)
	}
	for path, want := range map[string]string{"top": "not_a_directory", "none": "not_found", "../out": "outside_root"} {
		if code := run(t, set, "dir_size", map[string]any{"path": path}, nil); code != want {
			t.Errorf("%s: %q", path, code)
		}
	}
}

func TestHuman(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1.0k", 12_345: "12k", 999_999: "1000k",
		5 << 30: "5.4G"} {
		if got := humanSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
