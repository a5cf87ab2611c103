package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// member of a layer, as a test writes it down.
type file struct {
	name string
	kind byte // 0 is a file, or a folder when name ends in /
	mode int64
	says string
	link string
	size int64 // of a file that says nothing
}

// tarOf makes the tar of a layer.
func tarOf(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{
			Name:     f.name,
			Typeflag: f.kind,
			Mode:     f.mode,
			Size:     int64(len(f.says)) + f.size,
			Linkname: f.link,
			ModTime:  time.Unix(1_700_000_000, 0),
			Uid:      1234,
		}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(f.name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		body := io.MultiReader(strings.NewReader(f.says), io.LimitReader(zeros{}, f.size))
		if _, err := io.Copy(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func gzipOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstdOf(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// blob is a layer with the content of a tar, packed somehow.
type blob struct {
	v1.Layer
	content v1.Hash
}

func (b blob) DiffID() (v1.Hash, error) { return b.content, nil }

func hashOf(b []byte) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(b))}
}

// layerOf is a layer of files: plain, gzip or zstd.
func layerOf(t testing.TB, how string, files ...file) v1.Layer {
	t.Helper()
	content := tarOf(t, files...)
	switch how {
	case "gzip":
		return blob{static.NewLayer(gzipOf(t, content), types.OCILayer), hashOf(content)}
	case "zstd":
		return blob{static.NewLayer(zstdOf(t, content), types.OCILayerZStd), hashOf(content)}
	}
	return blob{static.NewLayer(content, types.OCIUncompressedLayer), hashOf(content)}
}

// imageOf is an image for this machine.
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	return imageFor(t, runtime.GOARCH, layers...)
}

func imageFor(t testing.TB, machine string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: machine, Config: v1.Config{
		Env: []string{"PATH=/opt/bin:/bin", "LANG=C", "nonsense"}, User: "root", Entrypoint: []string{"/bin/evil"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		kind, err := l.MediaType()
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: kind}); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// storeIn opens a store that ends with the test.
func storeIn(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Folder == "" {
		o.Folder = filepath.Join(t.TempDir(), "images")
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// holds is what is below a folder: its files with what they say, links with
// where they lead, folders with a slash.
func holds(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(root, func(p string, info os.FileInfo, err error) error {
		if err != nil || p == root {
			return err
		}
		name := strings.TrimPrefix(p, root+"/")
		switch {
		case info.IsDir():
			all[name+"/"] = ""
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(p)
			all[name] = "-> " + to
			return err
		default:
			text, err := os.ReadFile(p)
			all[name] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nothingIsLeft checks that neither images nor parts of them lie in a folder.
func nothingIsLeft(t testing.TB, folder string) {
	t.Helper()
	for _, dir := range []string{"images", "making", "locks"} {
		if left, err := os.ReadDir(filepath.Join(folder, dir)); err != nil || len(left) > 0 {
			t.Errorf("%s holds %v, %v", dir, left, err)
		}
	}
}
