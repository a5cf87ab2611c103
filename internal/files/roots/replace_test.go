package roots

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// replacing is a place that is to be replaced, and what is there.
func replacing(t *testing.T, s *Set, path string) (Place, fs.FileInfo) {
	t.Helper()
	p, err := Locate(s, path)
	if err != nil {
		t.Fatal(err)
	}
	was, err := p.Lstat()
	if err != nil {
		was = nil
	}
	return p, was
}

func with(text string) func(*os.File) error {
	return func(f *os.File) error { _, err := f.WriteString(text); return err }
}

func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	left, _ := filepath.Glob(filepath.Join(dir, ".gatehouse-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	p, was := replacing(t, s, "f")
	now, err := new(Writer).Replace(t.Context(), nil, p, was, 0o640, with("one"))
	if err != nil || now.Size() != 3 || now.Mode().Perm() != 0o640 || Links(now) != 1 {
		t.Fatalf("a new file: %v, %v", now, err)
	}
	if now, err = new(Writer).Replace(t.Context(), nil, p, now, 0o777, with("second")); err != nil ||
		now.Mode().Perm() != 0o640 ||
		content(t, s, "f") != "second" {
		t.Fatalf("in its place: %v, %v", now, err)
	}
	failing := errors.New("no more")
	if _, err := new(Writer).Replace(t.Context(), nil, p, now, 0o644,
		func(f *os.File) error { f.WriteString("ha"); return failing }); err != failing ||
		content(t, s, "f") != "second" {
		t.Errorf("half of it: %v, %s", err, content(t, s, "f"))
	}
	noLeftovers(t, dir)
}

// What was changed behind our back is not overwritten by what was computed
// from the old content.
func TestReplaceOnlyWhatWasSeen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	write(t, "one", dir, "f")
	p, was := replacing(t, s, "f")
	write(t, "somebody else's", dir, "f")
	if _, err := new(Writer).Replace(t.Context(), nil, p, was, 0o644, with("two")); !errors.Is(err, ErrStale) {
		t.Errorf("what changed: %v", err)
	}
	os.Remove(filepath.Join(dir, "f"))
	if _, err := new(Writer).Replace(t.Context(), nil, p, was, 0o644, with("two")); !errors.Is(err, ErrStale) {
		t.Errorf("what is gone: %v", err)
	}
	write(t, "new", dir, "f")
	if _, err := new(Writer).Replace(t.Context(), nil, p, nil, 0o644, with("two")); !errors.Is(err, ErrStale) ||
		!errors.Is(err, fs.ErrExist) {
		t.Errorf("what has come: %v", err)
	}
	if got := content(t, s, "f"); got != "new" {
		t.Errorf("it holds %q", got)
	}
	noLeftovers(t, dir)
}

func TestReplaceKeepsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only the superuser can own files as somebody else")
	}
	dir := t.TempDir()
	os.Chown(write(t, "old", dir, "f"), 1234, 1235)
	p, was := replacing(t, open(t, dir), "f")
	now, err := new(Writer).Replace(t.Context(), nil, p, was, 0o644, with("new"))
	if err != nil {
		t.Fatal(err)
	}
	if uid, gid := owner(now); uid != 1234 || gid != 1235 {
		t.Errorf("now owned by %d:%d", uid, gid)
	}
}

func TestNamesOfTemporaryFiles(t *testing.T) {
	for range 100 {
		if name := tempName(); !isTemp(name) {
			t.Fatalf("%s is none", name)
		}
	}
	for _, name := range []string{"", ".gatehouse-", ".gatehouse-.tmp", ".gatehouse-notes.tmp", "x" + tempName(),
		tempName() + "x", ".gatehouse-abcdefghijklmnopqrstuvwxyz.tmp"} {
		if isTemp(name) {
			t.Errorf("%q is taken for one", name)
		}
	}
}
