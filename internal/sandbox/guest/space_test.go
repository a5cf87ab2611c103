//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// oneMiB writes a file that takes a MiB on disk.
func oneMiB(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Repeat([]byte("x"), 1<<20))
	return errors.Join(err, f.Sync(), f.Close())
}

// roomy is a guest with room for three of them.
func roomy(t *testing.T) *Cache {
	t.Helper()
	g := plainGuest(t)
	g.options.MaxBytes = 3<<20 + 512<<10
	return g
}

// makeOld has something made that was used so many hours ago.
func (g *Cache) makeOld(t *testing.T, key string, hours int) *os.File {
	t.Helper()
	f, err := g.cached(t.Context(), "thing", key, oneMiB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	at := time.Now().Add(-time.Duration(hours) * time.Hour)
	if err := os.Chtimes(f.Name(), at, at); err != nil {
		t.Fatal(err)
	}
	return f
}

func there(f *os.File) bool {
	_, err := os.Stat(f.Name())
	return !errors.Is(err, fs.ErrNotExist)
}

func TestWhatWasNotUsedForLongestMakesRoom(t *testing.T) {
	g := roomy(t)
	used, old, fresh := g.makeOld(t, "used", 3), g.makeOld(t, "old", 2), g.makeOld(t, "fresh", 1)
	old.Close()
	fresh.Close()
	g.makeOld(t, "another", 0)
	if !there(used) || there(old) || !there(fresh) {
		t.Errorf("that in use is there: %v, an old one: %v, a fresh one: %v", there(used), there(old), there(fresh))
	}
	g.makeOld(t, "old", 0)
	if !there(used) || there(fresh) || !there(old) {
		t.Errorf("that in use is there: %v, the next: %v, the one made again: %v", there(used), there(fresh),
			there(old))
	}
}

func TestWhatIsInUseStaysAndNoMoreIsMade(t *testing.T) {
	g := roomy(t)
	var all []*os.File
	for i := range 3 {
		all = append(all, g.makeOld(t, fmt.Sprint(i), i))
	}
	if _, err := g.cached(t.Context(), "thing", "more", oneMiB); err == nil ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(g.folder); err != nil || len(left) != 3 {
		t.Errorf("%v, %v", left, err)
	}
	all[0].Close()
	if f, err := g.cached(t.Context(), "thing", "more", oneMiB); err != nil || there(all[0]) {
		t.Errorf("%v", err)
	} else {
		f.Close()
	}
}

// Machines that are gone do not say so: what they had is found by the collector.
func TestWhatNothingRefersToMakesRoom(t *testing.T) {
	g := roomy(t)
	for i := range 3 {
		if _, err := g.cached(t.Context(), "thing", fmt.Sprint(i), oneMiB); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		var f *os.File
		if f, err = g.cached(t.Context(), "thing", "more", oneMiB); err == nil {
			f.Close()
			return
		}
	}
	t.Error(err)
}

func TestWhatAnotherHostUsesIsNotSweptAway(t *testing.T) {
	g := roomy(t)
	used, old := g.makeOld(t, "used", 0), g.makeOld(t, "old", 0)
	old.Close()
	for _, f := range []*os.File{used, old} {
		at := time.Now().Add(-2 * unusedAge)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
	}
	again := func() {
		t.Helper()
		if _, err := New(Options{Kernel: g.options.Kernel, Folder: g.folder}); err != nil {
			t.Fatal(err)
		}
	}
	again()
	if !there(used) || there(old) {
		t.Errorf("that in use is there: %v, the other: %v", there(used), there(old))
	}
	used.Close()
	again()
	if left, err := filepath.Glob(filepath.Join(g.folder, "*")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestWhatIsBesideCounts(t *testing.T) {
	g := roomy(t)
	beside := t.TempDir()
	var unused []string // beside
	g.CountFolder(beside, func() bool {
		if len(unused) == 0 {
			return false
		}
		at := unused[0]
		unused = unused[1:]
		return os.Remove(at) == nil
	})
	linked := g.makeOld(t, "linked", 3)
	linked.Close()
	link, copied := filepath.Join(beside, "link"), filepath.Join(beside, "copy")
	if err := errors.Join(os.Link(linked.Name(), link), oneMiB(copied)); err != nil {
		t.Fatal(err)
	}
	fresh := g.makeOld(t, "fresh", 1) // which counts with the copy, and the other name of a file does not
	if !there(linked) {
		t.Error("what has another name was removed, which makes no room")
	}
	if _, err := g.cached(t.Context(), "thing", "more", oneMiB); err == nil ||
		!strings.Contains(err.Error(), "machine_bytes") {
		t.Errorf("%v", err)
	}
	unused = []string{copied}
	g.makeOld(t, "more", 0)
	unused = []string{link}
	g.makeOld(t, "yet more", 0)
	if there(linked) || !there(fresh) {
		t.Errorf("what nobody uses is there: %v, what is in use: %v", there(linked), there(fresh))
	}
}
