package runtimes

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/blakesmith/ar"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"gatehouse/release/archive"
)

// largestFile bounds each file of an item, in bytes.
const largestFile = 512 << 20

// Files returns the files of all items for one processor, below "/" and without a first slash.
// No script of a package is run.
func (l *Lock) Files(ctx context.Context, arch, cache string) ([]archive.File, error) {
	if len(l.Items[arch]) == 0 {
		return nil, fmt.Errorf("lock.json has nothing for %s", arch)
	}
	t := newTree()
	for _, it := range l.Items[arch] {
		b, err := l.Fetch(ctx, it, cache)
		if err == nil {
			err = t.unpack(it, b)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", it.Name, err)
		}
	}
	return t.files(), nil
}

// tree is a file system that is being put together.
type tree struct{ all map[string]archive.File }

// merged are the folders that are links to those below usr since Debian 12.
var merged = []string{"bin", "lib", "lib32", "lib64", "libx32", "sbin"}

// links are those that scripts of packages would make.
var links = map[string]string{
	"usr/bin/awk":   "mawk",
	"usr/bin/which": "which.debianutils",
	"usr/bin/npm":   "../lib/node_modules/npm/bin/npm-cli.js",
	"usr/bin/npx":   "../lib/node_modules/npm/bin/npx-cli.js",
}

func newTree() *tree {
	t := &tree{all: map[string]archive.File{}}
	for _, dir := range merged {
		t.all[dir] = archive.File{Name: dir, Link: "usr/" + dir}
	}
	return t
}

// files returns what the tree holds, without links that lead to nothing in it.
func (t *tree) files() (all []archive.File) {
	for name, target := range links {
		if _, ok := t.all[path.Join(path.Dir(name), target)]; ok {
			t.all[name] = archive.File{Name: name, Link: target}
		}
	}
	for _, f := range t.all {
		if f.Link != "" && !path.IsAbs(f.Link) && strings.HasPrefix(f.Link, "usr/") && !t.has(f.Link+"/") {
			continue
		}
		all = append(all, f)
	}
	return all
}

func (t *tree) has(prefix string) bool {
	for name := range t.all {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// place returns where a file of a package belongs, or false if the image does without it.
func place(name string) (string, bool, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" || clean == "." {
		return "", false, nil
	}
	if !fs.ValidPath(clean) {
		return "", false, fmt.Errorf("%q leads out of its package", name)
	}
	first, rest, below := strings.Cut(clean, "/")
	for _, dir := range merged {
		if first == dir && below {
			clean = "usr/" + dir + "/" + rest
		}
	}
	for _, dir := range []string{"usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/",
		"usr/share/bash-completion/", "usr/share/gitweb/", "usr/share/bug/"} {
		if strings.HasPrefix(clean, dir) {
			return "", false, nil
		}
	}
	if strings.HasPrefix(clean, "usr/share/doc/") && path.Base(clean) != "copyright" {
		return "", false, nil
	}
	return clean, true, nil
}

func (t *tree) unpack(it Item, b []byte) error {
	switch it.Kind {
	case Deb:
		return t.unpackDeb(it, b)
	case Node:
		return t.unpackNPM(b, func(name string) string {
			switch name {
			case "bin/node":
				return "usr/bin/node"
			case "LICENSE":
				return "usr/share/doc/nodejs/copyright"
			}
			return ""
		})
	case NPM:
		return t.unpackNPM(b, func(name string) string {
			if strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "man/") {
				return ""
			}
			return "usr/lib/node_modules/npm/" + name
		})
	case Wheel:
		return t.unpackWheel(it, b)
	}
	return fmt.Errorf("unknown kind %q", it.Kind)
}

// unpackDeb reads a package of Debian: an ar archive of two tar archives.
func (t *tree) unpackDeb(it Item, b []byte) error {
	r := ar.NewReader(bytes.NewReader(b))
	found := false
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		member := strings.TrimSuffix(h.Name, "/")
		name, kind, _ := strings.Cut(member, ".tar")
		if name != "data" && name != "control" {
			continue
		}
		plain, err := decompress(kind, r)
		if err != nil {
			return fmt.Errorf("%s: %w", member, err)
		}
		if name == "data" {
			found = true
			err = t.unpackTar(plain, place)
		} else {
			err = t.recordPackage(it, plain)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", member, err)
		}
	}
	if !found {
		return errors.New("it has no data.tar")
	}
	return nil
}

// recordPackage keeps a package's own description where scanners of images without dpkg look for it.
func (t *tree) recordPackage(it Item, r io.Reader) error {
	all := newTree()
	if err := all.unpackTar(r, func(name string) (string, bool, error) {
		return "control", path.Base(name) == "control", nil
	}); err != nil {
		return err
	}
	name := "var/lib/dpkg/status.d/" + it.Name
	t.all[name] = archive.File{Name: name, Mode: 0o644, Body: all.all["control"].Body}
	return nil
}

func decompress(kind string, r io.Reader) (io.Reader, error) {
	switch kind {
	case "":
		return r, nil
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		return xz.NewReader(r)
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("unknown compression %q", kind)
}

// unpackTar adds the files of a tar archive where at says.
func (t *tree) unpackTar(r io.Reader, at func(name string) (to string, wanted bool, err error)) error {
	all := tar.NewReader(r)
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, wanted, err := at(h.Name)
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		f := archive.File{Name: name, Mode: fs.FileMode(h.Mode) & fs.ModePerm}
		switch h.Typeflag {
		case tar.TypeDir:
			continue // folders follow from their files
		case tar.TypeSymlink:
			f.Link = h.Linkname
		case tar.TypeLink:
			target, _, err := at(h.Linkname)
			if err != nil {
				return err
			}
			f = t.all[target]
			f.Name = name
		case tar.TypeReg:
			if h.Size > largestFile {
				return fmt.Errorf("%s has %d bytes", h.Name, h.Size)
			}
			if f.Body, err = io.ReadAll(all); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is of the unexpected type %q", h.Name, h.Typeflag)
		}
		t.all[name] = f
	}
}

// unpackNPM adds the files of a package of npm where to says; "" leaves a file out.
func (t *tree) unpackNPM(b []byte, to func(name string) string) error {
	plain, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	return t.unpackTar(plain, func(name string) (string, bool, error) {
		if !fs.ValidPath(name) {
			return "", false, fmt.Errorf("%q leads out of its package", name)
		}
		_, inner, _ := strings.Cut(name, "/")
		at := to(inner)
		return at, at != "", nil
	})
}

// unpackWheel adds the programs of a wheel, and its licences.
func (t *tree) unpackWheel(it Item, b []byte) error {
	all, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return err
	}
	programs := 0
	for _, f := range all.File {
		dir, base := path.Split(f.Name)
		to, mode := "", fs.FileMode(0o644)
		switch {
		case strings.HasSuffix(dir, ".data/scripts/") && base != "":
			to, mode = "usr/bin/"+base, 0o755
			programs++
		case strings.Contains(dir, ".dist-info/licenses/") && base != "":
			to = "usr/share/doc/" + it.Name + "/" + base
		default:
			continue
		}
		body, err := readZipped(f)
		if err != nil {
			return err
		}
		t.all[to] = archive.File{Name: to, Mode: mode, Body: body}
	}
	if programs == 0 {
		return errors.New("it has no programs")
	}
	return nil
}

func readZipped(f *zip.File) ([]byte, error) {
	if f.UncompressedSize64 > largestFile {
		return nil, fmt.Errorf("%s has %d bytes", f.Name, f.UncompressedSize64)
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, cmp.Or(err, r.Close())
}
