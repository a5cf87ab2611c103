package packages

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/exec/shield"
)

// onDisk is what a folder takes, each file once.
func onDisk(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	var seen []fs.FileInfo
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(seen, func(other fs.FileInfo) bool { return os.SameFile(other, info) }) {
			seen = append(seen, info)
			bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// program makes a program with big files and one small one of its own.
func program(t *testing.T, own string, same ...string) string {
	t.Helper()
	files := map[string]string{"package.json": own, "bin/run": "#!/bin/sh\n"}
	for _, s := range same {
		files["node_modules/"+s+"/index.js"] = strings.Repeat(s, 100_000)
	}
	dir := t.TempDir()
	write(t, dir, files)
	return dir
}

func newStore(t *testing.T) *store {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("packages share no files on Windows")
	}
	return &store{dir: filepath.Join(t.TempDir(), storeFolder)}
}

func share(t *testing.T, s *store, program string) shared {
	t.Helper()
	sum, err := s.share(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// Programs with the same files hold them once, until the last of them is gone.
func TestFilesOfProgramsAreHeldOnce(t *testing.T) {
	s := newStore(t)
	a, b := program(t, "a", "x", "y"), program(t, "b", "y", "z")
	one := share(t, s, a)
	two := share(t, s, b)
	if one.saved != 0 || two.saved != 100_000+int64(len("#!/bin/sh\n")) || one.files != 4 {
		t.Errorf("shared %+v and %+v", one, two)
	}
	if again := share(t, s, b); again.saved != again.bytes {
		t.Errorf("shared again: %+v", again)
	}
	for _, name := range []string{"node_modules/y/index.js", "bin/run"} {
		was, err1 := os.Stat(filepath.Join(a, name))
		is, err2 := os.Stat(filepath.Join(b, name))
		if err := errors.Join(err1, err2); err != nil || !os.SameFile(was, is) || is.Mode().Perm()&0o200 != 0 {
			t.Errorf("%s: %v, %v", name, is.Mode(), err)
		}
	}
	if bytes, also, err := usage(t.Context(), b); err != nil || bytes != two.bytes || also != two.saved {
		t.Errorf("uses %d, %d, %v", bytes, also, err)
	}
	// The same file twice in one program is not in another.
	write(t, a, map[string]string{"twice/x": strings.Repeat("x", 100_000)})
	share(t, s, a)
	if bytes, also, err := usage(t.Context(), a); err != nil || bytes != one.bytes+100_000 || also != two.saved {
		t.Errorf("uses %d, %d, %v", bytes, also, err)
	}
	if err := os.RemoveAll(a); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.collect(t.Context()); err != nil || freed != 100_001 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.collect(t.Context()); err != nil || onDisk(t, s.dir) != 0 {
		t.Errorf("%d bytes stay, %v", onDisk(t, s.dir), err)
	}
}

// What a package did to an object, by whatever way, is not handed to the next package;
// copies of a program are its own.
func TestADamagedObjectIsNotHandedOn(t *testing.T) {
	s := newStore(t)
	a, b := program(t, "a", "x"), program(t, "b", "x")
	share(t, s, a)
	name := "node_modules/x/index.js"
	if err := errors.Join(os.Chmod(filepath.Join(a, name), 0o600),
		os.WriteFile(filepath.Join(a, name), []byte("bad"), 0o600)); err != nil {
		t.Fatal(err)
	}
	share(t, s, b)
	got, err := os.ReadFile(filepath.Join(b, name))
	if err != nil || string(got) != strings.Repeat("x", 100_000) {
		t.Errorf("got %.20q, %v", got, err)
	}
	if err := s.separate(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c := program(t, "c", "x")
	share(t, s, c)
	if err := os.WriteFile(filepath.Join(b, name), []byte("mine"), 0o600); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(c, name)); err != nil || len(got) != 100_000 {
		t.Errorf("got %.20q, %v", got, err)
	}
}

// An end between any two steps leaves each file whole, and nothing that stays for good.
func TestSharingEndsAnywhere(t *testing.T) {
	for steps := range 12 {
		s := newStore(t)
		a, b := program(t, "a", "x", "y"), program(t, "b", "x", "y")
		share(t, s, a)
		ctx := &stepped{Context: t.Context(), left: steps}
		_, err := s.share(ctx, b)
		if steps < 5 && err == nil {
			t.Errorf("after %d steps it went on", steps)
		}
		// A link that was not renamed yet stays as one would after a kill.
		if err := os.Link(filepath.Join(a, "package.json"), filepath.Join(b, tmpPrefix+"left")); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"x", "y"} {
			if got, err := os.ReadFile(filepath.Join(b, "node_modules", file, "index.js")); err != nil ||
				len(got) != 100_000 {
				t.Errorf("after %d steps: %d bytes, %v", steps, len(got), err)
			}
		}
		share(t, s, b)
		if _, err := os.Stat(filepath.Join(b, tmpPrefix+"left")); err == nil {
			t.Error("a file of the first try is left")
		}
		if err := errors.Join(os.RemoveAll(a), os.RemoveAll(b)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.collect(t.Context()); err != nil || onDisk(t, s.dir) != 0 {
			t.Errorf("%d bytes stay, %v", onDisk(t, s.dir), err)
		}
	}
}

// stepped is a context that ends after some looks at it.
type stepped struct {
	context.Context
	left int
}

func (s *stepped) Err() error {
	if s.left--; s.left < 0 {
		return context.Canceled
	}
	return nil
}

// Packages that are installed share files, a server cannot write them, and one that has
// to gets its own.
//
//redteam:attack Children are kept from the host's own files: a package writes a file that another package has too
func TestPackagesShareFiles(t *testing.T) {
	if shield.Possible() == shield.None {
		t.Skip("this kernel has no Landlock")
	}
	needsShell(t)
	h := openHome(t, Options{Share: true})
	t.Cleanup(shield.Close([]string{h.opts.Folder}, nil, nil))
	big := strings.Repeat("content ", 50_000)
	add := func(id, run string) Info {
		dir := t.TempDir()
		files := source(t, "1.0.0")
		files["lib/big"] = big
		files["bin/run"] = strings.Replace(files["bin/run"], "#!/bin/sh\n", "#!/bin/sh\n"+run+"\n", 1)
		write(t, dir, files)
		return h.install(from(id, "folder:"+dir))
	}
	at := func(id string) string {
		i, err := h.Info(id)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(h.opts.Folder, id, i.Program)
	}
	attack := `{ cd "$(dirname "$0")/.."; chmod 700 lib/big; echo over > lib/big; echo new > lib/new; ln lib/big "$HOME/big" && echo over > "$HOME/big"; }`
	first := add("one", "")
	if !first.Shared {
		t.Fatalf("it does not share: %+v", first.Record)
	}
	add("two", attack+" 2> \"$HOME/said\"")
	for _, id := range []string{"one", "two"} {
		if got, err := os.ReadFile(filepath.Join(at(id), "lib/big")); err != nil || string(got) != big {
			t.Errorf("%s has %.20q, %v", id, got, err)
		}
	}
	if said, err := os.ReadFile(filepath.Join(h.opts.Folder, "two", "data", "said")); err != nil || len(said) == 0 {
		t.Errorf("nothing was denied: %q, %v", said, err)
	}
	if got, want := onDisk(t, h.opts.Folder), int64(2*len(big)); got >= want {
		t.Errorf("%d bytes on the disk, and one program has %d", got, len(big))
	}

	// A server that has to write there has files of its own, also after a rebuild.
	third := add("three", `cd "$(dirname "$0")/.."; echo over > lib/big || exit 7`)
	if !third.Writable || third.Shared {
		t.Errorf("installed as %+v", third.Record)
	}
	if _, err := h.Rebuild(t.Context(), "three", "", nil); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(at("one"), "lib/big")); err != nil || string(got) != big {
		t.Errorf("one has %.20q, %v", got, err)
	}

	// Files go with the last package.
	for _, id := range []string{"one", "two", "three"} {
		if err := h.Remove(id, false); err != nil {
			t.Error(err)
		}
	}
	h.eventually("the store is empty", func() bool { return onDisk(t, filepath.Join(h.opts.Folder, storeFolder)) == 0 })
}
