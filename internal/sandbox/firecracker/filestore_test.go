//go:build linux && (amd64 || arm64)

package firecracker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/guest"
)

// crowded makes disks of a MiB, which jails get as copies, and has room for four
// MiB together.
type crowded struct {
	*guest.Cache
	disks
}

func (c crowded) Vmlinux(ctx context.Context) (string, error) { return c.disks.Vmlinux(ctx) }
func (c crowded) Initrd(ctx context.Context) (string, error)  { return c.disks.Initrd(ctx) }
func (c crowded) MakeRoom(bytes int64) error                  { return c.Cache.MakeRoom(bytes) }
func (c crowded) CountFolder(folder string, drop func() bool) { c.Cache.CountFolder(folder, drop) }
func (c crowded) Root(_ context.Context, image *sandbox.Image) (guest.Disk, error) {
	path, err := c.file(image.ID, strings.Repeat("x", 1<<20))
	return guest.Disk{Path: path, Type: "ext4"}, err
}
func (c crowded) Tree(ctx context.Context, from string) (guest.Disk, error) {
	return c.disks.Tree(ctx, from)
}

func TestCopiesForJailsCountAndMakeRoom(t *testing.T) {
	d := faked(t, true)
	kernel := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(kernel, []byte("\x7fELF Linux version 6.1.2-x (gcc)"), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := guest.New(guest.Options{Kernel: kernel, Folder: t.TempDir(), MaxBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	own := disks{t.TempDir()}
	d.setSystem(crowded{made, own})
	create := func(id string) (sandbox.Sandbox, error) {
		return d.Create(t.Context(), sandbox.Spec{Image: &sandbox.Image{ID: id, Root: "/"}})
	}
	var alive []sandbox.Sandbox
	for _, id := range []string{"a", "b", "c"} {
		b, err := create(id)
		if err != nil {
			t.Skip(err)
		}
		defer b.Close()
		alive = append(alive, b)
	}
	if _, err := create("d"); err == nil || !strings.Contains(err.Error(), "machine_bytes") ||
		!strings.Contains(err.Error(), "end sandboxes") {
		t.Errorf("one too many: %v", err)
	}
	kept, err := alive[0].(sandbox.Snapshotter).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range alive[:2] {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	again, err := create("d") // in the room of b, as that of a is kept
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	of, err := kept.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(kept.Close(), kept.Close(), of.Close()); err != nil {
		t.Error(err)
	}
	if b, err := create("e"); err != nil { // in that of a
		t.Error(err)
	} else {
		b.Close()
	}
}

func TestWhatNobodyHoldsForLongestLeavesTheShelf(t *testing.T) {
	full := errors.New("there is no room")
	var without error
	s := fileStore{dir: t.TempDir(), makeRoom: func(int64) error { return without }}
	put := func(name string) string {
		t.Helper()
		from := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(from, bytes.Repeat([]byte(name), 100), 0o600); err != nil {
			t.Fatal(err)
		}
		at, err := s.storeFile(from)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	one, two := put("one"), put("two")
	if s.drop() {
		t.Error("what is held was dropped")
	}
	s.hold([]string{two})
	s.releaseFiles([]string{two})
	s.releaseFiles([]string{two})
	s.releaseFiles([]string{one})
	for _, at := range []string{two, one} {
		if !s.drop() {
			t.Fatal("nothing was dropped")
		}
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", at, err)
		}
	}
	if three := put("three"); three == one || three == two {
		t.Errorf("another file is where one was, at %s", three)
	}
	without = full
	from := filepath.Join(t.TempDir(), "four")
	if err := os.WriteFile(from, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.storeFile(from); !errors.Is(err, full) {
		t.Errorf("without room: %v", err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
