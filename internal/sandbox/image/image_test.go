package image

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	layouts "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	tarballs "github.com/google/go-containerregistry/pkg/v1/tarball"

	"gatehouse/internal/files/filelock"
)

// small is an image of three layers, packed in three ways, of which each
// changes what the one before made.
func small(t testing.TB) v1.Image {
	return imageOf(t,
		layerOf(t, "gzip",
			file{name: "bin/"}, file{name: "bin/sh", says: "old"}, file{name: "etc/"},
			file{name: "etc/gone", says: "x"},
			file{name: "srv/a", says: "a"}, file{name: "srv/b/c", says: "c"},
			file{name: "run", kind: tar.TypeSymlink, link: "/var/run"},
			file{name: "var/run/"}, file{name: "dev/null", kind: tar.TypeChar},
			file{name: "dev/pipe", kind: tar.TypeFifo}),
		layerOf(t, "zstd",
			file{name: "bin/sh", says: "new", mode: 0o4755}, file{name: "bin/ash", kind: tar.TypeLink, link: "bin/sh"},
			file{name: "etc/.wh.gone"}, file{name: "srv/d", says: "d"}, file{name: "srv/.wh..wh..opq"}),
		layerOf(t, "plain",
			file{name: "./run/pid", says: "1", mode: 0o666},
			file{name: "/etc/shadow", says: "secret", mode: 0o600}, file{name: "tmp/", mode: 0o1777}))
}

var smallHolds = map[string]string{
	"bin/": "", "bin/sh": "new", "bin/ash": "new", "etc/": "", "etc/shadow": "secret", "srv/": "", "srv/d": "d",
	"run": "-> /var/run", "var/": "", "var/run/": "", "var/run/pid": "1", "tmp/": "", "dev/": "",
}

// inLayout writes images down as a layout.
func inLayout(t testing.TB, images map[string]v1.Image) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layouts.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for tag, img := range images {
		if err := p.AppendImage(img,
			layouts.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tarOfFolder packs a folder.
func tarOfFolder(t testing.TB, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

// savedAs writes an image as docker save did.
func savedAs(t testing.TB, img v1.Image, tag string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "saved.tar")
	ref, err := name.NewTag("host.test/some/thing:" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarballs.WriteToFile(out, ref, img); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnImageIsUnpackedWhateverItCameIn(t *testing.T) {
	img := small(t)
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	dir := inLayout(t, map[string]v1.Image{"one": img})
	for _, ref := range []string{
		"oci:" + dir, "oci:" + dir + ":one", "tar:" + tarOfFolder(t, dir), "tar:" + savedAs(t, img, "v1"),
		"tar:" + savedAs(t, img, "v1") + ":v1",
	} {
		t.Run(ref[:3], func(t *testing.T) {
			s := storeIn(t, Options{})
			var last, of int64
			got, release, err := s.Get(t.Context(), ref, func(done, total int64) { last, of = done, total })
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if got.ID != id.String() || !slices.Equal(got.Env, []string{"PATH=/opt/bin:/bin", "LANG=C"}) {
				t.Errorf("got %s with %q, want %s", got.ID, got.Env, id)
			}
			if has := holds(t, got.Root); !maps.Equal(has, smallHolds) {
				t.Errorf("got %q, want %q", has, smallHolds)
			}
			if last == 0 || last != of {
				t.Errorf("told of %d bytes of %d", last, of)
			}
		})
	}
}

func TestModesAreThoseThatOthersSee(t *testing.T) {
	s := storeIn(t, Options{})
	got, release, err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"one": small(t)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for name, want := range map[string]fs.FileMode{
		".": fs.ModeDir | 0o755, "bin/sh": 0o755, "etc/shadow": 0o600, "var/run/pid": 0o644,
		"tmp": fs.ModeDir | 0o755, "srv": fs.ModeDir | 0o755,
	} {
		info, err := os.Stat(filepath.Join(got.Root, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	info, err := os.Stat(filepath.Join(got.Root, "bin/sh"))
	if err != nil || info.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("%v, %v: the time of a file is not kept", info.ModTime(), err)
	}
}

func TestAFolderIsUsedAsItIs(t *testing.T) {
	s := storeIn(t, Options{})
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	a, release, err := s.Get(t.Context(), "dir:"+dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	release()
	b, release, err := s.Get(t.Context(), "dir:"+link, nil)
	if err != nil || a.Root != dir || a.ID != b.ID || a.Root != b.Root {
		t.Errorf("%+v and %+v, %v", a, b, err)
	}
	release()
	if _, _, err := s.Get(t.Context(), "dir:"+filepath.Join(dir, "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestManyAskersWaitForOneUnpacking(t *testing.T) {
	s := storeIn(t, Options{})
	ref := "oci:" + inLayout(t, map[string]v1.Image{"one": small(t)})
	roots := make([]string, 16)
	var all sync.WaitGroup
	for i := range roots {
		all.Go(func() {
			img, release, err := s.Get(t.Context(), ref, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			roots[i] = img.Root
			if has := holds(t, img.Root); !maps.Equal(has, smallHolds) {
				t.Errorf("got %q", has)
			}
		})
	}
	all.Wait()
	if len(slices.Compact(roots)) != 1 {
		t.Errorf("several roots: %q", roots)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].InUse || list[0].Bytes == 0 || list[0].Entries == 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestWhatIsInUseIsNotRemoved(t *testing.T) {
	folder := t.TempDir()
	s, other := storeIn(t, Options{Folder: folder}), storeIn(t, Options{Folder: folder})
	img, release, err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"one": small(t)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(img.ID); !errors.Is(err, ErrInUse) {
		t.Errorf("removed while in use: %v", err)
	}
	if list, err := other.List(); err != nil || len(list) != 1 || !list[0].InUse {
		t.Errorf("%+v, %v", list, err)
	}
	release()
	release() // once more does nothing
	if err := other.Remove(img.ID); err != nil {
		t.Error(err)
	}
	if err := s.Remove(img.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	nothingIsLeft(t, folder)
}

func TestTheLongestUnusedGoesFirst(t *testing.T) {
	folder := t.TempDir()
	// Each takes ten blocks with its entries, and there is room for two.
	s := storeIn(t, Options{Folder: folder, TotalBytes: 100 << 10})
	get := func(what string) (id string, release func(), err error) {
		img := imageOf(t, layerOf(t, "gzip", file{name: what, says: strings.Repeat(what, 32<<10)}))
		got, release, err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"x": img}), nil)
		if err != nil {
			return "", nil, err
		}
		return got.ID, release, nil
	}
	has := func() (all []string) {
		list, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			all = append(all, i.ID)
		}
		return all
	}
	a, holdA, err := get("a")
	if err != nil {
		t.Fatal(err)
	}
	b, releaseB, err := get("b")
	if err != nil {
		t.Fatal(err)
	}
	releaseB()
	c, holdC, err := get("c")
	if err != nil {
		t.Fatal(err)
	}
	if all := has(); len(all) != 2 || slices.Contains(all, b) {
		t.Errorf("%q are left of %q, %q and %q, of which the first and the last are in use", all, a, b, c)
	}
	if _, _, err := get("d"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("one more than there is room for: %v", err)
	}
	holdA()
	_, release, err := get("d")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if all := has(); len(all) != 2 || slices.Contains(all, a) || !slices.Contains(all, c) {
		t.Errorf("%q are left", all)
	}
	holdC()
}

func TestNobodyIsServedAfterClose(t *testing.T) {
	s := storeIn(t, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(t.Context(), "dir:/", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsLeftHalfDoneIsSwept(t *testing.T) {
	folder := t.TempDir()
	storeIn(t, Options{Folder: folder})
	hex := strings.Repeat("ab", 32)
	if err := os.MkdirAll(filepath.Join(folder, "making", hex, "root", "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := cache{folder: folder}
	l, err := c.lock(t.Context(), hex, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	storeIn(t, Options{Folder: folder})
	if _, err := os.Stat(filepath.Join(folder, "making", hex)); err != nil {
		t.Errorf("taken from under whoever makes it: %v", err)
	}
	l.Release()
	storeIn(t, Options{Folder: folder})
	nothingIsLeft(t, folder)
}

func TestADamagedImageIsMadeAnew(t *testing.T) {
	s := storeIn(t, Options{})
	ref := "oci:" + inLayout(t, map[string]v1.Image{"one": small(t)})
	img, release, err := s.Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := os.WriteFile(filepath.Join(filepath.Dir(img.Root), notes), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	img, release, err = s.Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if has := holds(t, img.Root); !maps.Equal(has, smallHolds) {
		t.Errorf("got %q", has)
	}
}

func TestWhoeverGivesUpLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	s := storeIn(t, Options{Folder: folder})
	img := small(t)
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	// Another process pulls it, so that the caller has to wait.
	l, err := s.cache.lock(t.Context(), id.Hex, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := s.Get(ctx, "oci:"+inLayout(t, map[string]v1.Image{"one": img}), nil); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	s.cache.unlock(l, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	nothingIsLeft(t, folder)
}

func TestThePlatformIsThatOfThisMachine(t *testing.T) {
	other := "s390x"
	mine, theirs := small(t), imageFor(t, other, layerOf(t, "gzip", file{name: "other"}))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{
			Add:        theirs,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}},
		},
		mutate.IndexAddendum{
			Add:        theirs,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}},
		},
		mutate.IndexAddendum{
			Add:        mine,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}},
		})
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layouts.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendIndex(index); err != nil {
		t.Fatal(err)
	}
	s := storeIn(t, Options{})
	img, release, err := s.Get(t.Context(), "oci:"+dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if want, _ := mine.ConfigName(); img.ID != want.String() {
		t.Errorf("got %s, want %s", img.ID, want)
	}
	if _, _, err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"x": theirs}), nil); err == nil ||
		!strings.Contains(err.Error(), other) {
		t.Errorf("an image for another machine: %v", err)
	}
}

func TestOneOfSeveralImagesIsNamed(t *testing.T) {
	dir := inLayout(t, map[string]v1.Image{"one": small(t), "two": imageOf(t, layerOf(t, "plain", file{name: "two"}))})
	s := storeIn(t, Options{})
	for ref, want := range map[string]string{
		"oci:" + dir: "add the tag", "oci:" + dir + ":three": "no image has the tag",
		"tar:" + savedAs(t, small(t), "v1") + ":v2": "match the tag",
	} {
		if _, _, err := s.Get(t.Context(), ref, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ref[:3], err, want)
		}
	}
	img, release, err := s.Get(t.Context(), "oci:"+dir+":two", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := os.Stat(filepath.Join(img.Root, "two")); err != nil {
		t.Error(err)
	}
}
