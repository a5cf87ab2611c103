package roots

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestNarrow(t *testing.T) {
	base := t.TempDir()
	first, second := filepath.Join(base, "first"), filepath.Join(base, "second")
	write(t, "a", first, "app/a.txt")
	write(t, "b", first, "lib/b.txt")
	write(t, "c", second, "c.txt")
	write(t, "out", base, "out/o.txt")
	link(t, "../lib/b.txt", first, "app/sideways")
	link(t, filepath.Join(first, "lib"), first, "app/absolute")
	link(t, filepath.Join(base, "out"), first, "app/away")
	link(t, filepath.Join(base, "out"), first, "out")
	link(t, "app", first, "alias")
	s := open(t, first, second)
	for _, c := range []struct {
		announced []string
		folders   []string // none means that there is no set
	}{
		{[]string{first}, []string{first}},
		{[]string{first + "/app"}, []string{first + "/app"}},
		{[]string{first + "/alias/"}, []string{first + "/alias"}},
		{[]string{second, first + "/app"}, []string{second, first + "/app"}},
		{[]string{first + "/app", first + "/app", first + "/alias"}, []string{first + "/app"}},
		{[]string{base}, []string{first, second}},
		{[]string{"/"}, []string{first, second}},
		{[]string{base + "/out"}, nil},
		{[]string{first + "/out"}, nil}, // a link that leads away
		{[]string{first + "/app/../../out"}, nil},
		{[]string{first + "/app/a.txt"}, nil},
		{[]string{first + "/none"}, nil},
		{[]string{"app", "", "a\x00b"}, nil},
		{nil, nil},
	} {
		n := s.Narrow(c.announced)
		if n == nil {
			if c.folders != nil {
				t.Errorf("%q: nothing is left, want %q", c.announced, c.folders)
			}
			continue
		}
		var got []string
		for _, r := range n.List() {
			got = append(got, r.Path)
		}
		if !slices.Equal(got, c.folders) {
			t.Errorf("%q: got %q, want %q", c.announced, got, c.folders)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := content(t, s, first+"/app/a.txt"); got != "a" {
		t.Errorf("closing the part closed the whole: %s", got)
	}

	n := s.Narrow([]string{first + "/app"})
	defer n.Close()
	for path, want := range map[string]string{
		"a.txt": "a", first + "/app/a.txt": "a", "./x/../a.txt": "a",
		first + "/lib/b.txt": "!outside_root", "../lib/b.txt": "!outside_root", second + "/c.txt": "!outside_root",
		"sideways": "!outside_root", "absolute/b.txt": "!outside_root", "away/o.txt": "!outside_root",
	} {
		if got := content(t, n, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// A part of a folder that is protected is so as well, although its name does
// not show in the names below it any more.
func TestNarrowKeepsWhatIsProtected(t *testing.T) {
	dir := t.TempDir()
	write(t, "secret", dir, ".ssh/config")
	write(t, "fine", dir, ".ssh/known_hosts")
	write(t, "secret", dir, ".ssh/deep/er/key")
	write(t, "secret", dir, "app/.env")
	write(t, "fine", dir, "app/.git/config")
	link(t, "config", dir, ".ssh/plain")
	s := open(t, dir)
	for _, c := range []struct{ announced, path, want string }{
		{".ssh", "config", "!denied"}, {".ssh", "plain", "!denied"}, {".ssh", "known_hosts", "fine"},
		{".ssh/deep", "er/key", "!denied"}, {".ssh/deep/er", "key", "!denied"},
		{"app", ".env", "!denied"}, {"app/.git", "config", "fine"},
	} {
		n := s.Narrow([]string{filepath.Join(dir, c.announced)})
		if got := content(t, n, c.path); got != c.want {
			t.Errorf("%s in %s: got %s, want %s", c.path, c.announced, got, c.want)
		}
		p, err := Locate(n, c.path)
		if err != nil {
			t.Fatal(err)
		}
		if (p.MayWrite() == nil) != (c.announced == ".ssh" && c.path == "known_hosts") {
			t.Errorf("%s in %s: writing it: %v", c.path, c.announced, p.MayWrite())
		}
		if top, err := Locate(n, "."); err != nil || top.Refuses(c.path) != (c.want == "!denied") {
			t.Errorf("%s in %s: judged otherwise from above (%v)", c.path, c.announced, err)
		}
		n.Close()
	}
	whole := s.Narrow([]string{dir})
	again := whole.Narrow([]string{filepath.Join(dir, ".ssh")}).Narrow([]string{filepath.Join(dir, ".ssh/deep")})
	if got := content(t, again, "er/key"); got != "!denied" {
		t.Errorf("narrowed again and again: %s", got)
	}
}
