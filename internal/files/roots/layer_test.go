package roots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/merged"
)

// layered is a View of one folder whose changes are kept as copies.
type layered struct{ layer *merged.Layer }

func (v layered) Root(string) (*os.Root, error)        { return nil, errors.ErrUnsupported }
func (v layered) Space(bool) (*overlay.Space, error)   { return nil, errors.ErrUnsupported }
func (v layered) Mount(string, bool) (*os.File, error) { return nil, errors.ErrUnsupported }
func (v layered) Private(string) string                { return "" }
func (v layered) Layer(string) (*merged.Layer, func() error, error) {
	return v.layer, func() error { return nil }, nil
}

// describeTree describes everything in a folder: modes, links, content.
func describeTree(t *testing.T, in fs.FS, readlink func(string) (string, error)) string {
	t.Helper()
	var all []string
	err := fs.WalkDir(in, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v", name, info.Mode())
		switch {
		case info.Mode().IsRegular():
			b, err := fs.ReadFile(in, name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// operate does one random change to a workspace, as a file tool does, and describes what came of it.
func operate(rs *Set, r *rand.Rand) string {
	names := []string{"a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "n", "n/m", "l", "l/x", "out"}
	name := func() string { return names[r.IntN(len(names))] }
	says := func(what string, err error) string {
		if err != nil {
			return what + ": " + errorText(err)
		}
		return what
	}
	followed := func(path string, last bool) (Place, error) {
		p, err := Locate(rs, path)
		if err == nil {
			p, err = p.Followed(last)
		}
		return p, err
	}
	first, second, kind := name(), name(), r.IntN(9)
	content := fmt.Sprint("content ", r.IntN(1000))
	p, err := followed(first, kind <= 3)
	if err != nil {
		return says("locate "+first, err)
	}
	switch kind {
	case 0, 1, 2: // write, as file_write does
		was, err := p.Lstat()
		if err != nil {
			was = nil
		}
		if was != nil && !was.Mode().IsRegular() {
			return "not a file " + first
		}
		w := Writer{}
		_, err = w.Replace(context.Background(), nil, p, was, 0o644, func(f *os.File) error {
			_, err := f.WriteString(content)
			return err
		})
		return says("write "+first, err)
	case 3:
		return says("mkdir "+first, p.Root.MkdirAll(p.Name, 0o755))
	case 4:
		return says("remove "+first, p.Remove())
	case 5:
		if p.Name == "." {
			return "no"
		}
		return says("remove all "+first, p.RemoveAll())
	case 6, 7:
		to, err := followed(second, false)
		if err != nil {
			return says("locate "+second, err)
		}
		if _, err := to.Lstat(); err == nil && r.IntN(2) == 0 {
			return "there " + second
		}
		if info, err := p.Lstat(); err == nil && info.IsDir() {
			if err := p.MayMove(to); err != nil {
				return says("may move "+first, err)
			}
		}
		return says("rename "+first+" "+second, Rename(p, to))
	}
	if _, err := p.Lstat(); err == nil {
		return "there " + first
	}
	return says("link "+first, p.Root.Symlink(second, p.Name))
}

// What file tools do to a folder whose changes are kept as copies is what they would have done to the folder itself,
// which stays as it is, also if the layer is opened again between calls.
func TestALayerIsWhatTheFolderWouldBe(t *testing.T) {
	seeds := uint64(20)
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		seeds = 400
	}
	for seed := range seeds {
		base := t.TempDir()
		var dirs [2]string
		for i, name := range []string{"folder", "layered"} {
			dirs[i] = filepath.Join(base, name)
			for name, content := range map[string]string{"a": "1", "d/x": "2", "d/y": "3", "d/e/z": "4", "d/e/q/deep": "5"} {
				at := filepath.Join(dirs[i], name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o640)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("d", filepath.Join(dirs[i], "l")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("../outside", filepath.Join(dirs[i], "out")); err != nil {
				t.Fatal(err)
			}
		}
		kept := filepath.Join(base, "kept")
		if err := os.MkdirAll(filepath.Join(kept, "upper"), 0o755); err != nil {
			t.Fatal(err)
		}
		before := describeTree(t, os.DirFS(dirs[1]), func(n string) (string, error) {
			return os.Readlink(filepath.Join(dirs[1], n))
		})
		one, two := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 1))
		plain := open(t, dirs[0])
		var done []string
		for range 40 {
			lower := open(t, dirs[1])
			layer, err := merged.Open(dirs[1], kept, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			set, err := lower.In(layered{layer}, true)
			if err != nil {
				t.Fatal(err)
			}
			want, got := operate(plain, one), operate(set, two)
			done = append(done, want)
			layer.Settle()
			f, err := layer.Folder(".")
			if err != nil {
				t.Fatal(err)
			}
			has := describeTree(t, f.FS(), f.Readlink)
			should := describeTree(t, os.DirFS(dirs[0]), func(n string) (string, error) {
				return os.Readlink(filepath.Join(dirs[0], n))
			})
			if got != want || has != should {
				t.Fatalf("seed %d after\n%s\nlayered: %s\nit has\n%s\nwant\n%s", seed, strings.Join(done, "\n"), got, has, should)
			}
			layer.Close()
			set.Close()
		}
		if after := describeTree(t, os.DirFS(dirs[1]), func(n string) (string, error) {
			return os.Readlink(filepath.Join(dirs[1], n))
		}); after != before {
			t.Fatalf("seed %d changed the folder:\n%s\nwas\n%s", seed, after, before)
		}
	}
}
