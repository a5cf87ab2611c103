package roots

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/tool"
)

func write(t *testing.T, content string, path ...string) string {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func link(t *testing.T, target string, path ...string) {
	t.Helper()
	p := filepath.Join(path...)
	os.MkdirAll(filepath.Dir(p), 0o755)
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dirs ...string) *Set {
	t.Helper()
	var list []Dir
	for _, d := range dirs {
		list = append(list, Dir{Path: d})
	}
	s, err := Open(list, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// content reads a file through the set, or tells the code of the refusal.
func content(t *testing.T, s *Set, path string) string {
	t.Helper()
	p, err := Locate(s, path)
	if err == nil {
		var f *os.File
		if f, _, err = p.Regular(); err == nil {
			defer f.Close()
			b, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
	}
	r, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		t.Fatalf("%s: %v is no refusal", path, err)
	}
	for _, root := range s.List() {
		if root.Path != "/" && strings.Contains(strings.ReplaceAll(r.Text(), path, ""), root.Path) {
			t.Errorf("%s: %q tells where a root is", path, r.Text())
		}
	}
	return "!" + string(r.Code)
}

func TestOpenNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	file := write(t, "x", dir, "file")
	for _, path := range []string{filepath.Join(dir, "missing"), file, ""} {
		_, err := Open([]Dir{{Path: dir}, {Path: path}}, Options{})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%q): %v", path, err)
		}
	}
	if _, err := Open(nil, Options{}); err == nil {
		t.Error("opening nothing succeeded")
	}
}

func TestNamesAreUnique(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a/src", "b/src", "c"} {
		os.MkdirAll(filepath.Join(dir, d), 0o755)
	}
	s, err := Open(
		[]Dir{
			{Path: dir + "/a/src"},
			{Path: dir + "/b/src/"},
			{Path: "~/c"},
			{Name: "c", Path: dir + "/b"},
			{Path: dir + "/a/../a/src"},
		},
		Options{Home: dir},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var names []string
	for _, r := range s.List() {
		names = append(names, r.Name)
	}
	if got, want := strings.Join(names, " "), "src src-2 c c-2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, "first", a, "f")
	write(t, "inner", a, "in/f")
	write(t, "second", b, "f")
	write(t, "dots", a, "..f")
	write(t, "outside", dir, "f")
	link(t, a, dir, "alias")
	s, err := Open([]Dir{{Path: dir + "/alias"}, {Path: b}, {Path: a + "/in"}}, Options{Home: b})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for path, want := range map[string]string{
		"f": "first", "./f": "first", "in/../f": "first", "in//f": "inner", "..f": "dots",
		a + "/f": "first", dir + "/alias/f": "first", b + "/f": "second", "~/f": "second", a + "/in/f": "inner",
		b + "/../a/f": "first",
		"../f":        "!outside_root", "..": "!outside_root", "in/../../f": "!outside_root",
		dir + "/f": "!outside_root", "/etc/passwd": "!outside_root", a + "x/f": "!outside_root", "/": "!outside_root",
		"~root/f": "!not_found", "": "!invalid_arguments", "a\x00b": "!invalid_arguments",
		".": "!is_a_directory", a: "!is_a_directory", `C:\Windows`: "!outside_root",
		strings.Repeat("n", 300): "!invalid_arguments", strings.Repeat("d/", 5000) + "f": "!not_found",
		"f/x": "!not_a_directory",
	} {
		if got := content(t, s, path); got != want {
			t.Errorf("%.60q: got %s, want %s", path, got, want)
		}
	}
}

// Links may be absolute or lead through another root, as long as they end in
// one.
//
//redteam:attack Files stay inside the roots: symbolic links that lead out
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	a, b, out := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "out")
	write(t, "a", a, "sub/f")
	write(t, "b", b, "f")
	write(t, "secret", out, "f")
	link(t, "sub/f", a, "relative")
	link(t, a+"/sub/f", a, "absolute")
	link(t, a+"/sub", a, "dir")
	link(t, "../b/f", a, "sibling")
	link(t, b, a, "other")
	link(t, "../b/../a/./sub", a, "around")
	link(t, out+"/f", a, "out")
	link(t, out, a, "outdir")
	link(t, "../out/f", a, "relout")
	link(t, "../../../../../../../../../../etc/passwd", a, "deep")
	link(t, "out", a, "chain1")
	link(t, "chain1", a, "chain2")
	link(t, "loop2", a, "loop1")
	link(t, "loop1", a, "loop2")
	link(t, a+"/self", a, "self")
	link(t, "nowhere", a, "dangling")
	link(t, a+"/nowhere", a, "absdangling")
	link(t, "/proc/self/root/etc/passwd", a, "magic")
	for i, target := range strings.Fields("sub/f l0 l1 l2 l3 l4 l5 l6 l7 l8 l9 l10") {
		link(t, target, a, "l"+[]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}[i])
	}
	s := open(t, a, b)
	for path, want := range map[string]string{
		"relative": "a", "absolute": "a", "dir/f": "a", "sibling": "b", "other/f": "b", "around/f": "a", "l11": "a",
		"dir/../absolute": "a",
		"out":             "!outside_root", "outdir/f": "!outside_root", "relout": "!outside_root",
		"deep":   "!outside_root",
		"chain2": "!outside_root", "magic": "!outside_root", "outdir/../f": "!not_found",
		"loop1": "!unsupported", "self": "!unsupported", "dangling": "!not_found", "absdangling": "!not_found",
		"absolute/": "a", "out/": "!outside_root", "outdir": "!outside_root", "dir": "!is_a_directory",
	} {
		if got := content(t, s, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if _, err := os.Stat(out + "/f"); err != nil {
		t.Error(err)
	}
}

// A folder that was deleted and made again is the new one.
func TestReplacedFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	write(t, "old", dir, "f")
	s := open(t, dir)
	if got := content(t, s, "f"); got != "old" {
		t.Fatal(got)
	}
	os.RemoveAll(dir)
	if got := content(t, s, "f"); got != "!not_found" {
		t.Errorf("after deleting: %s", got)
	}
	write(t, "new", dir, "f")
	if got := content(t, s, "f"); got != "new" {
		t.Errorf("after making it again: %s", got)
	}
	os.Rename(dir, dir+".old")
	write(t, "newer", dir, "f")
	if got := content(t, s, "f"); got != "newer" {
		t.Errorf("after renaming: %s", got)
	}
}

// A link that has taken the place of an inner folder is not followed out of
// the outer one.
func TestReplacedByLink(t *testing.T) {
	dir := t.TempDir()
	a, out := filepath.Join(dir, "a"), filepath.Join(dir, "out")
	write(t, "in", a, "in/f")
	write(t, "secret", out, "f")
	s := open(t, a, a+"/in")
	os.RemoveAll(a + "/in")
	link(t, out, a, "in")
	if got := content(t, s, a+"/in/f"); got != "!not_found" {
		t.Errorf("got %s", got)
	}
	if got := content(t, s, "in/f"); got == "secret" {
		t.Errorf("got %s", got)
	}
}

func TestUnrestricted(t *testing.T) {
	dir := t.TempDir()
	write(t, "here", dir, "f")
	link(t, dir+"/f", dir, "abs")
	t.Chdir(dir)
	s, err := Unrestricted(Options{Home: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for path, want := range map[string]string{
		"f": "here", dir + "/f": "here", "~/f": "here", "abs": "here", "../" + filepath.Base(dir) + "/f": "here",
		"/": "!is_a_directory", "/dev/zero": "!not_a_file", "/dev/null": "!not_a_file",
	} {
		if got := content(t, s, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

func TestClosed(t *testing.T) {
	dir := t.TempDir()
	write(t, "x", dir, "f")
	s := open(t, dir)
	s.Close()
	if got := content(t, s, "f"); got != "!unavailable" {
		t.Errorf("got %s", got)
	}
}

// While another process keeps swapping a directory for a link that leads out, a
// reader gets what is inside or a refusal, and never what is outside.
//
//redteam:attack Files stay inside the roots: folders and links are swapped during calls
func TestRacer(t *testing.T) {
	dir := t.TempDir()
	a, out := filepath.Join(dir, "a"), filepath.Join(dir, "out")
	write(t, "inside", a, "d/f")
	write(t, "secret", out, "f")
	link(t, out, a, "evil")
	link(t, a+"/d", a, "via")
	s := open(t, a)

	done := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			os.Rename(a+"/d", a+"/t")
			os.Rename(a+"/evil", a+"/d")
			os.Rename(a+"/d", a+"/evil")
			os.Rename(a+"/t", a+"/d")
		}
	})
	seen := make(map[string]int)
	for begin, i := time.Now(), 0; i < 3000 || time.Since(begin) < lasting(t); i++ {
		for _, path := range []string{"d/f", "via/f"} {
			got := content(t, s, path)
			seen[got]++
			if got == "secret" {
				t.Fatal("escaped")
			}
		}
	}
	close(done)
	swapper.Wait()
	t.Log(seen)
}

func FuzzResolve(f *testing.F) {
	dir := f.TempDir()
	os.MkdirAll(dir+"/root/sub", 0o755)
	os.WriteFile(dir+"/secret", []byte("secret"), 0o644)
	os.Symlink(dir+"/secret", dir+"/root/link")
	s, err := Open([]Dir{{Path: dir + "/root"}}, Options{Home: dir})
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range []string{"../secret", "sub/../../secret", "link", "~/secret", dir + "/root/../secret",
		"sub//..//.//..", "\x00"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		p, err := Locate(s, path)
		if err != nil {
			return
		}
		if !filepath.IsLocal(p.Name) {
			t.Errorf("%q gives %q", path, p.Name)
		}
		if file, _, err := p.Regular(); err == nil {
			b, _ := io.ReadAll(file)
			file.Close()
			if string(b) == "secret" {
				t.Errorf("%q leads out", path)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	os.MkdirAll(dir+"/x/y", 0o755)
	os.WriteFile(dir+"/x/y/f", make([]byte, 2300), 0o644)
	s, err := Open([]Dir{{Path: dir}}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 4096)
	b.Run("resolve", func(b *testing.B) {
		for b.Loop() {
			Locate(s, "x/y/f")
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			p, _ := Locate(s, "x/y/f")
			f, _, err := p.Regular()
			if err != nil {
				b.Fatal(err)
			}
			f.Read(buf)
			f.Close()
		}
	})
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			f, _ := os.Open(dir + "/x/y/f")
			f.Read(buf)
			f.Close()
		}
	})
}

// lasting is for how long a racer runs at least; GATEHOUSE_RACER=30s says so.
func lasting(t *testing.T) time.Duration {
	text := os.Getenv("GATEHOUSE_RACER")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
