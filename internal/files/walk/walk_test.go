package walk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
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

// seen walks and returns the paths, directories with a slash, sorted.
func seen(t testing.TB, dir string, o Options) ([]string, Stats) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	o.Root = root
	var mu sync.Mutex
	var paths []string
	stats, err := Walk(t.Context(), o, func(_ int, d *Dir, entries []Entry) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range entries {
			p := d.Join(e.Name)
			if e.IsDir() {
				p += "/"
			}
			paths = append(paths, p)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	return paths, stats
}

func TestWalk(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a/b/c.go", "")
	put(t, dir, "a/.hidden", "")
	put(t, dir, ".git/config", "")
	put(t, dir, "z", "")
	os.Symlink("..", filepath.Join(dir, "a/up"))
	syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "a/ a/.hidden a/b/ a/b/c.go a/up pipe z"},
		{Options{All: true}, ".git/ .git/config a/ a/.hidden a/b/ a/b/c.go a/up pipe z"},
		{Options{Depth: 1}, "a/ pipe z"},
		{Options{Depth: 2}, "a/ a/.hidden a/b/ a/up pipe z"},
		{Options{Start: "a/b"}, "c.go"},
		{Options{Workers: 8}, "a/ a/.hidden a/b/ a/b/c.go a/up pipe z"},
		{Options{Skip: func(p string, dir bool) bool { return p == "a/b" && dir }}, "a/ a/.hidden a/up pipe z"},
	} {
		got, _ := seen(t, dir, c.o)
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: got %s, want %s", c.o, s, c.want)
		}
	}
}

// A large directory is shared among workers, and every entry comes once.
func TestLargeDirectory(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		put(t, dir, fmt.Sprintf("%04d", i), "")
	}
	put(t, dir, ".ignore", "*7\n")
	got, stats := seen(t, dir, Options{Workers: 4})
	if len(got) != 2701 || len(slices.Compact(got)) != 2701 || stats.Ignored != 300 || stats.Entries != 2701 {
		t.Errorf("%d entries, %+v", len(got), stats)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "open/f", "")
	put(t, dir, "shut/f", "")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	// The user of the tests may be able to read everything; a directory that goes away
	// between being listed and being opened is the same to a walk.
	var once sync.Once
	stats, err := Walk(t.Context(), Options{Root: root, Workers: 1}, func(_ int, d *Dir, entries []Entry) {
		once.Do(func() { os.RemoveAll(filepath.Join(dir, "shut")) })
	})
	if err != nil || stats.Unreadable != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
	if _, err := Walk(t.Context(), Options{Root: root, Start: "none"}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing start: %v", err)
	}
	if _, err := Walk(t.Context(), Options{Root: root, Start: "../.."}, nil); err == nil {
		t.Error("a walk starts outside")
	}
}

// A visitor's panic ends the walk where it can be recovered from.
func TestPanic(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		put(t, dir, fmt.Sprintf("d%d/f", i), "")
	}
	root, _ := os.OpenRoot(dir)
	defer root.Close()
	defer func() {
		if p := recover(); !strings.Contains(fmt.Sprint(p), "visitor trips") {
			t.Errorf("recovered %v", p)
		}
	}()
	Walk(t.Context(), Options{Root: root}, func(int, *Dir, []Entry) { panic("visitor trips") })
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		put(t, dir, fmt.Sprintf("d%d/f", i), "")
	}
	root, _ := os.OpenRoot(dir)
	defer root.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	_, err := Walk(ctx, Options{Root: root}, func(int, *Dir, []Entry) { cancel(stop) })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// Deeper than MaxDepth is counted, not walked.
func TestDeep(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, strings.Repeat("d/", MaxDepth+20)+"f", "")
	got, stats := seen(t, dir, Options{})
	if len(got) != MaxDepth || stats.TooDeep != 1 {
		t.Errorf("%d entries, %+v", len(got), stats)
	}
}

// What git ignores, we ignore.
func TestIgnoreAgreesWithGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git to compare with")
	}
	dir := t.TempDir()
	rules := []string{
		"*.log", "!keep.log", "/build", "out/", "docs/*.txt", "**/gen", "a/**/z", "deep/**", "!deep/not", "# comment",
		"",
		"\\#hash", "\\!bang", "trail\\ ", "sp ace  ", "[ab]x", "[!c]y", "q?", "*.[oa]", "foo/*", "!foo/bar", "x*y*z",
		"/only/here", "mid/dle", "**", "ü*",
	}
	put(t, dir, "sub/.gitignore", "*.md\n!/README.md\n/top\nnest/inner\n!b.log\n")
	names := []string{
		"a.log", "keep.log", "build/x", "sub/build/x", "out/x", "sub/out", "sub/out2/out/f", "docs/a.txt",
		"docs/b/a.txt", "x/gen/f", "gen",
		"a/z", "a/b/z", "a/b/c/z/f", "deep/x", "deep/not", "#hash", "!bang", "trail ", "sp ace", "ax", "by", "cy", "qq",
		"q", "m.o", "m.c",
		"foo/bar", "foo/baz", "xaybz", "only/here", "sub/only/here", "mid/dle", "sub/mid/dle", "sub/a.md",
		"sub/README.md", "sub/top", "sub/x/top",
		"sub/nest/inner", "sub/x/nest/inner", "sub/b.log", "sub/x/b.log", "über", "plain",
	}
	for _, n := range names {
		put(t, dir, n, "")
	}
	if out, err := exec.CommandContext(t.Context(), git, "-C", dir, "init", "-q").CombinedOutput(); err != nil {
		t.Skipf("git init: %v, %s", err, out)
	}
	for i := range len(rules) {
		file := rules[:i]
		if i == len(rules)-1 { // "**" alone would hide all the others
			file = []string{"**", "!plain"}
		}
		put(t, dir, ".gitignore", strings.Join(file, "\n")+"\n")
		out, err := exec.CommandContext(t.Context(), git, "-C", dir, "-c", "core.excludesFile=/dev/null", "ls-files",
			"-z", "--others", "--exclude-standard").
			Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		slices.Sort(want)
		got, _ := seen(t, dir, Options{})
		got = slices.DeleteFunc(got, func(p string) bool { return strings.HasSuffix(p, "/") })
		if !slices.Equal(got, want) {
			t.Errorf("with %q:\ngot  %q\nwant %q", file, got, want)
		}
	}
}

// The rules of the directories above the start count too.
func TestRulesAbove(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, ".gitignore", "*.log\n/a/b/skip\n/skip2\n")
	put(t, dir, "a/.gitignore", "b/c\n!good.log\n")
	for _, n := range []string{"skip", "skip2", "c", "d", "x.log", "good.log"} {
		put(t, dir, "a/b/"+n, "")
	}
	got, _ := seen(t, dir, Options{Start: "a/b"})
	if s := strings.Join(got, " "); s != "d good.log skip2" {
		t.Errorf("got %s", s)
	}
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		globs string
		path  string
		want  bool
	}{
		{"*.go", "a/b/c.go", true}, {"*.go", "a/b/c.go.txt", false}, {"a/*.go", "a/c.go", true},
		{"a/*.go", "a/b/c.go", false},
		{"a/**/*.go", "a/c.go", true}, {"a/**/*.go", "a/x/y/c.go", true}, {"**/c.go", "c.go", true},
		{"**/b/**", "a/b/c", true}, {"**/b/**", "a/b", false},
		{"/c.go", "c.go", true}, {"/c.go", "a/c.go", false}, {"./c.go", "c.go", true}, {"a/", "a/b/c", true},
		{"a/", "b/a", false},
		{"*.{go,md}", "x.md", true}, {"*.{go,md}", "x.c", false}, {"{a,b/{c,d}}/x", "b/d/x", true},
		{"{a,b/{c,d}}/x", "b/x", false},
		{"!*.go", "x.go", false}, {"!*.go", "x.md", true}, {"*.go !*_test.go", "a_test.go", false},
		{"*.go !*_test.go", "a.go", true},
		{"?.go", "ä.go", true}, {"[a-c]x", "bx", true}, {"[!a-c]x", "bx", false}, {"[]]x", "]x", true},
		{"[x", "[x", true}, {`\*x`, "*x", true}, {`\*x`, "ax", false},
		{"a*b*c", "a/b/c", false}, {"a*b*c", "aXbXc", true}, {"**", "a/b", true}, {"a/**", "a/b/c", true},
		{"**/a/**/b/**/c", "x/a/a/b/a/b/c", true},
		{"src/**/test/*.py", "src/a/test/b/test/x.py", true}, {"src/**/test/*.py", "src/a/test/b/x.py", false},
	} {
		g, err := ParseGlobs(strings.Fields(c.globs))
		if err != nil {
			t.Errorf("%s: %v", c.globs, err)
			continue
		}
		if got := g.Match(c.path, c.path[strings.LastIndexByte(c.path, '/')+1:]); got != c.want {
			t.Errorf("%s on %s: got %v", c.globs, c.path, got)
		}
	}
	for _, bad := range []string{"", "!", "{a", strings.Repeat("{a,b}", 10)} {
		if _, err := ParseGlobs([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzGlobs(f *testing.F) {
	f.Add("a/**/*.{go,[!x]}", "a/b/c.go")
	f.Add("**/*/**", "a/b/c")
	f.Add("[a-", "x")
	f.Fuzz(func(t *testing.T, glob, path string) {
		g, err := ParseGlobs([]string{glob})
		if err == nil {
			g.Match(path, path[strings.LastIndexByte(path, '/')+1:])
		}
		parseRules([]byte(glob))
	})
}

func BenchmarkWalk(b *testing.B) {
	root, err := os.OpenRoot("../../..")
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	for b.Loop() {
		Walk(b.Context(), Options{Root: root}, func(int, *Dir, []Entry) {})
	}
}
