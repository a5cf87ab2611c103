package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tight is what hostile images may have.
var tight = Limits{Bytes: 1 << 20, File: 256 << 10, Entries: 40, Depth: 8, Ratio: 250}

func many(n int, one file) (all []file) {
	for i := range n {
		one := one
		one.name = strings.Replace(one.name, "N", strings.Repeat("n", i+1), 1)
		all = append(all, one)
	}
	return all
}

//redteam:attack An image is believed when it was read to its end: layers that lead out of their folder
func TestHostileLayersStayInsideOrFail(t *testing.T) {
	victim := t.TempDir() // on the host, and no layer reaches it
	if err := os.WriteFile(filepath.Join(victim, "kept"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 20)
	for i, c := range []struct {
		name   string
		layers [][]file
		fails  string            // part of the error
		holds  map[string]string // what came of it, else
	}{
		{name: "a link to the top that is written through", layers: [][]file{{
			{name: "link", kind: tar.TypeSymlink, link: "/"}, {name: "link/planted", says: "x"}}},
			holds: map[string]string{"link": "-> /", "planted": "x"}},
		{name: "a link upwards that is written through", layers: [][]file{{
			{name: "link", kind: tar.TypeSymlink, link: up}, {name: "link/planted", says: "x"}}},
			holds: map[string]string{"link": "-> " + up, "planted": "x"}},
		{name: "a link to a folder of the host that a later layer writes through", layers: [][]file{
			{{name: "link", kind: tar.TypeSymlink, link: "/v"}}, {{name: "link/planted", says: "x"}}},
			holds: map[string]string{"link": "-> /v", "v/": "", "v/planted": "x"}},
		{name: "a whiteout through a link to the host", layers: [][]file{
			{{name: "link", kind: tar.TypeSymlink, link: victim}},
			{{name: "link/.wh.kept"}, {name: "link/.wh..wh..opq"}}},
			holds: map[string]string{"link": "-> " + victim}},
		{name: "a file over a link to the host", layers: [][]file{{
			{name: "a", kind: tar.TypeSymlink, link: victim + "/kept"}, {name: "a", says: "mine"}}},
			holds: map[string]string{"a": "mine"}},
		{name: "a file over another name of a link", layers: [][]file{{
			{name: "a", kind: tar.TypeSymlink, link: victim + "/kept"},
			{name: "b", kind: tar.TypeLink, link: "a"}, {name: "b", says: "mine"}}},
			holds: map[string]string{"a": "-> " + victim + "/kept", "b": "mine"}},
		{name: "a folder over a link to the host", layers: [][]file{{
			{name: "a", kind: tar.TypeSymlink, link: victim}, {name: "a/"}, {name: "a/planted", says: "x"}}},
			holds: map[string]string{"a/": "", "a/planted": "x"}},
		{name: "a file over one with another name", layers: [][]file{
			{{name: "a", says: "old"}, {name: "b", kind: tar.TypeLink, link: "a"}}, {{name: "a", says: "new"}}},
			holds: map[string]string{"a": "new", "b": "old"}},
		{
			name:   "another name of itself",
			layers: [][]file{{{name: "a", says: "x"}, {name: "a", kind: tar.TypeLink, link: "./a"}}},
			holds:  map[string]string{"a": "x"},
		},
		{
			name:   "an absolute name",
			layers: [][]file{{{name: "/etc/passwd", says: "x"}}},
			holds:  map[string]string{"etc/": "", "etc/passwd": "x"},
		},
		{
			name: "devices and pipes",
			layers: [][]file{{{name: "null", kind: tar.TypeChar}, {name: "sda", kind: tar.TypeBlock},
				{name: "p", kind: tar.TypeFifo}}},
			holds: map[string]string{},
		},
		{
			name:   "a device over a file",
			layers: [][]file{{{name: "a", says: "x"}}, {{name: "a", kind: tar.TypeChar}}},
			holds:  map[string]string{},
		},
		{name: "gone and there again in one layer", layers: [][]file{
			{{name: "d/old", says: "x"}, {name: "e", says: "x"}},
			{{name: "d/new", says: "y"}, {name: ".wh.d"}, {name: "e", says: "y"}, {name: ".wh.e"}}},
			holds: map[string]string{"d/": "", "d/new": "y", "e": "y"}},
		{
			name:   "gone although it never was",
			layers: [][]file{{{name: "x/.wh.y"}, {name: ".wh.z"}, {name: ".wh..wh.plnk"}}},
			holds:  map[string]string{},
		},

		{name: "upwards", layers: [][]file{{{name: "../planted", says: "x"}}}, fails: "contains .."},
		{name: "down and upwards", layers: [][]file{{{name: "a/../../planted", says: "x"}}}, fails: "contains .."},
		{
			name:   "another name of a file of the host",
			layers: [][]file{{{name: "a", kind: tar.TypeLink, link: victim + "/kept"}}},
			fails:  "hard link",
		},
		{
			name:   "another name of a file above",
			layers: [][]file{{{name: "a", kind: tar.TypeLink, link: up + victim + "/kept"}}},
			fails:  "hard link",
		},
		{name: "another name of a file of the host through a link", layers: [][]file{{
			{name: "l", kind: tar.TypeSymlink, link: victim}, {name: "a", kind: tar.TypeLink, link: "l/kept"}}},
			fails: "hard link"},
		{
			name:   "another name of a folder",
			layers: [][]file{{{name: "d/"}, {name: "a", kind: tar.TypeLink, link: "d"}}},
			fails:  "not a file",
		},
		{
			name:   "another name of what it is put over",
			layers: [][]file{{{name: "d/f", says: "x"}, {name: "d", kind: tar.TypeLink, link: "d/f"}}},
			fails:  "no such file",
		},
		{name: "a whiteout of the folder above", layers: [][]file{{{name: "a/.wh..."}}}, fails: "no file to remove"},
		{name: "a whiteout of nothing", layers: [][]file{{{name: "a/"}, {name: "a/.wh."}}}, fails: "no file to remove"},
		{name: "links in a circle", layers: [][]file{{
			{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"},
			{name: "a/x", says: "x"}}}, fails: "too many links"},
		{name: "links that lead ever further", layers: [][]file{{
			{name: "a", kind: tar.TypeSymlink, link: strings.Repeat("a/", 400)}, {name: "a/x", says: "x"}}},
			fails: "too long"},
		{name: "deeper by a link", layers: [][]file{{
			{name: "1/2/3/4/5/6/7/"}, {name: "l", kind: tar.TypeSymlink, link: "1/2/3/4/5/6/7"},
			{name: "l/8/9/x", says: "x"}}}, fails: "deep"},
		{
			name:   "below a file",
			layers: [][]file{{{name: "a", says: "x"}, {name: "a/b", says: "x"}}},
			fails:  "not a folder",
		},
		{
			name:   "the top is a file",
			layers: [][]file{{{name: "./", kind: tar.TypeSymlink, link: "/"}}},
			fails:  "not a folder",
		},
		{name: "an unknown kind", layers: [][]file{{{name: "a", kind: 'Z'}}}, fails: "unknown type"},
		{name: "too deep", layers: [][]file{{{name: "1/2/3/4/5/6/7/8/9", says: "x"}}}, fails: "deep"},
		{name: "too many", layers: [][]file{many(41, file{name: "N"})}, fails: "more than 40 files"},
		{
			name:   "too many over all layers",
			layers: [][]file{many(30, file{name: "N"}), many(30, file{name: "N"})},
			fails:  "more than 40 files",
		},
		{name: "a large file", layers: [][]file{{{name: "a", size: 300 << 10}}}, fails: "a file may have"},
		{
			name:   "large files together",
			layers: [][]file{many(6, file{name: "N", size: 200 << 10})},
			fails:  "an image may have",
		},
		{
			name:   "large files over one another",
			layers: [][]file{many(3, file{name: "N", size: 200 << 10}), many(3, file{name: "N", size: 200 << 10})},
			fails:  "an image may have",
		},
		{
			name:   "a long name",
			layers: [][]file{{{name: strings.Repeat("n", 5000), says: "x"}}},
			fails:  "a name has 5000 bytes",
		},
		{
			name:   "a link to a long name",
			layers: [][]file{{{name: "a", kind: tar.TypeSymlink, link: strings.Repeat("n", 5000)}}},
			fails:  "links to a name",
		},
	} {
		how := []string{"plain", "gzip", "zstd"}[i%3]
		t.Run(c.name+", "+how, func(t *testing.T) {
			folder := t.TempDir()
			s := storeIn(t, Options{Folder: folder, Limits: tight})
			var layers []v1.Layer
			for _, files := range c.layers {
				layers = append(layers, layerOf(t, how, files...))
			}
			img, release,
				err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"x": imageOf(t, layers...)}), nil)
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("got %v, want %q", err, c.fails)
			case c.fails != "":
				nothingIsLeft(t, folder)
			case err != nil:
				t.Error(err)
			case !maps.Equal(holds(t, img.Root), c.holds):
				t.Errorf("got %q, want %q", holds(t, img.Root), c.holds)
			}
			if err == nil {
				release()
			}
			if has := holds(t, victim); len(has) != 1 || has["kept"] != "kept" {
				t.Errorf("the host's folder holds %q", has)
			}
		})
	}
}

// layerWith is a layer that is said to be something.
type layerWith struct {
	v1.Layer
	digest, content *v1.Hash
	size            int64
}

func (l layerWith) Digest() (v1.Hash, error) {
	if l.digest != nil {
		return *l.digest, nil
	}
	return l.Layer.Digest()
}

func (l layerWith) DiffID() (v1.Hash, error) {
	if l.content != nil {
		return *l.content, nil
	}
	return l.Layer.DiffID()
}

func (l layerWith) Size() (int64, error) {
	if l.size != 0 {
		return l.size, nil
	}
	return l.Layer.Size()
}

func TestLayersAreWhatTheyAreSaidToBe(t *testing.T) {
	good := layerOf(t, "gzip", file{name: "a", says: "x"})
	other := hashOf([]byte("other"))
	content := tarOf(t, file{name: "a", says: strings.Repeat("x", 4096)})
	cut := gzipOf(t, content)
	cut = cut[:len(cut)-6]
	bomb := gzipOf(t, tarOf(t, file{name: "a", size: 20 << 20}))
	big := zstdOf(t, tarOf(t, file{name: "a", size: 20 << 20}))
	for name, c := range map[string]struct {
		layer v1.Layer
		fails string
	}{
		"content":        {layerWith{Layer: good, content: &other}, "changed or damaged"},
		"cut off":        {blob{static.NewLayer(cut, types.OCILayer), hashOf(content)}, "EOF"},
		"a bomb":         {blob{static.NewLayer(bomb, types.OCILayer), other}, "times its size"},
		"a bomb of zstd": {blob{static.NewLayer(big, types.OCILayerZStd), other}, "times its size"},
		"not a tar":      {blob{static.NewLayer([]byte("hello"), types.OCIUncompressedLayer), other}, "EOF"},
		"no layer":       {blob{static.NewLayer([]byte("{}"), "application/json"), other}, "expected a tar"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			s := storeIn(t, Options{Folder: folder})
			_, _, err := s.Get(t.Context(), "oci:"+inLayout(t, map[string]v1.Image{"x": imageOf(t, c.layer)}), nil)
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("got %v, want %q", err, c.fails)
			}
			nothingIsLeft(t, folder)
		})
	}
}

// Blobs that were changed on disk are noticed, each kind of them.
//
//redteam:attack An image is believed when it was read to its end: blobs that are changed on the way
func TestChangedBlobsAreNoticed(t *testing.T) {
	img := imageOf(t, layerOf(t, "gzip", file{name: "a", says: strings.Repeat("text", 1000)}))
	manifest, err1 := img.Digest()
	config, err2 := img.ConfigName()
	layers, err3 := img.Layers()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	first, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		of     v1.Hash
		change func([]byte) []byte
	}{
		"manifest": {manifest, func(b []byte) []byte {
			return bytes.Replace(b, []byte("2"), []byte("1"), 1)
		}},
		"configuration": {config, func(b []byte) []byte {
			return bytes.Replace(b, []byte("/opt/bin"), []byte("/bad/bin"), 1)
		}},
		"longer":             {config, func(b []byte) []byte { return append(b, ' ') }},
		"shorter":            {config, func(b []byte) []byte { return b[:len(b)-1] }},
		"a layer":            {first, func(b []byte) []byte { b[4] ^= 1; return b }}, // an unused time
		"a layer, longer":    {first, func(b []byte) []byte { return append(b, 0) }},
		"a layer, cut short": {first, func(b []byte) []byte { return b[:len(b)-1] }},
		"a layer, other":     {first, func([]byte) []byte { return []byte("other") }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := inLayout(t, map[string]v1.Image{"x": img})
			at := filepath.Join(dir, "blobs", "sha256", c.of.Hex)
			text, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, c.change(text), 0o600); err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			for _, ref := range []string{"oci:" + dir, "tar:" + tarOfFolder(t, dir)} {
				if _, _, err := storeIn(t, Options{Folder: folder}).Get(t.Context(), ref, nil); err == nil {
					t.Errorf("%s: nobody noticed", ref[:3])
				}
			}
			nothingIsLeft(t, folder)
		})
	}
}

// A blob of a layout may not be a link out of it.
func TestALayoutDoesNotLeadOut(t *testing.T) {
	dir := inLayout(t, map[string]v1.Image{"x": small(t)})
	elsewhere := filepath.Join(t.TempDir(), "blobs")
	if err := os.Rename(filepath.Join(dir, "blobs"), elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := storeIn(t, Options{}).Get(t.Context(), "oci:"+dir, nil); err == nil ||
		!strings.Contains(err.Error(), "escapes") {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsNoImageIsSaidSo(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	both := t.TempDir()
	text := []byte(`{"schemaVersion":2,"manifests":[],"config":{},"layers":[]}`)
	h := hashOf(text)
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` +
		h.String() + `","size":` + "58" + `}]}`
	if err := errors.Join(
		os.MkdirAll(filepath.Join(both, "blobs", "sha256"), 0o700),
		os.WriteFile(filepath.Join(both, "index.json"), []byte(index), 0o600),
		os.WriteFile(filepath.Join(both, "blobs", "sha256", h.Hex), text, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	s := storeIn(t, Options{})
	for ref, want := range map[string]string{
		"oci:" + t.TempDir():                                    "no index.json",
		"tar:" + write("empty.tar", tarOf(t)):                   "neither index.json nor manifest.json",
		"tar:" + write("packed.tar", gzipOf(t, tarOf(t))):       "uncompress it first",
		"tar:" + write("text", []byte("hello, this is no tar")): "read the archive",
		"tar:" + write("nothing", nil):                          "not a tar",
		"tar:" + dir:                                            "not a regular file",
		"oci:" + write("file", nil):                             "not a directory",
		"dir:" + filepath.Join(dir, "file"):                     "expected a folder",
		"tar:" + write("cut.tar",
			tarOf(t, file{name: "index.json", says: strings.Repeat("x", 2000)})[:1000]): "truncated",
		"tar:" + write("circle.tar",
			tarOf(t, file{name: "manifest.json", kind: tar.TypeSymlink, link: "manifest.json"})): "neither",
		"tar:" + write("list.tar", tarOf(t, file{name: "manifest.json", says: "[]"})): "0 images",
		"oci:" + both: "ambiguous",
	} {
		if _, _, err := s.Get(t.Context(), ref, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(ref), err, want)
		}
	}
}

// FuzzLayer lays whatever a stranger calls a layer over a tree, twice, and
// looks whether anything came of it outside.
func FuzzLayer(f *testing.F) {
	f.Add(tarOf(f, file{name: "link", kind: tar.TypeSymlink, link: "/"}, file{name: "link/x", says: "x"}))
	f.Add(tarOf(f, file{name: "d/"}, file{name: "d/f", says: "x"},
		file{name: "l", kind: tar.TypeLink, link: "d/f"}, file{name: "d/.wh..wh..opq"}))
	f.Add(tarOf(f, file{name: "../x", says: "x"}))
	f.Add(gzipOf(f, tarOf(f, file{name: "a", says: "x"})))
	f.Add(zstdOf(f, tarOf(f, file{name: "a/b/../c", says: "x"}, file{name: ".wh..."})))
	f.Fuzz(func(t *testing.T, text []byte) {
		out := t.TempDir()
		if err := os.Mkdir(filepath.Join(out, "root"), 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(out, "root"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		l := layer{size: int64(len(text)), open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(text)), nil
		}}
		u := unpacker{tree: tree{root: root, most: tight}, came: func(int) {}}
		for range 2 { // the digests never fit, but by then all is laid out
			if err := u.layer(t.Context(), l); err == nil {
				t.Error("a layer without a digest was believed")
			}
		}
		u.closeFolder()
		for name := range holds(t, out) {
			if name != "root/" && !strings.HasPrefix(name, "root/") {
				t.Errorf("%q was made outside", name)
			}
		}
		if u.bytes > tight.Bytes+tight.File || u.entries > 2*tight.Entries+2 {
			t.Errorf("%d bytes and %d entries were allowed", u.bytes, u.entries)
		}
	})
}
