package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// files are those of an image layout, in a folder or in a tar.
type files interface {
	// open opens a regular file and tells its size. The error of a name that
	// is not there is fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// layout is an OCI image layout.
type layout struct {
	files
	tag string
}

// whole reads a small file.
func whole(in files, name string) ([]byte, error) {
	r, size, err := in.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > largestText {
		return nil, fmt.Errorf("%s has %d bytes; it may have %d", name, size, largestText)
	}
	return io.ReadAll(io.LimitReader(r, largestText))
}

func (l layout) find(ctx context.Context) (*found, error) {
	text, err := whole(l, "index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no index.json in it: expected an OCI image layout, as skopeo, buildah and docker save make them")
	}
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(strings.NewReader(string(text)))
	if err != nil {
		return nil, fmt.Errorf("decode index.json: %w", err)
	}
	d, err := l.tagged(index.Manifests)
	if err != nil {
		return nil, err
	}
	if text, err = l.manifest(ctx, d); err != nil {
		return nil, err
	}
	return resolve(ctx, l, d, text, 0)
}

// tagged finds what a layout's index has for the tag, or the only one there is
// for this machine.
func (l layout) tagged(all []v1.Descriptor) (v1.Descriptor, error) {
	var fit []v1.Descriptor
	var names []string
	for _, d := range all {
		name := d.Annotations["org.opencontainers.image.ref.name"]
		if name != "" {
			names = append(names, name)
		}
		if l.tag == "" || name == l.tag || strings.HasSuffix(name, ":"+l.tag) {
			fit = append(fit, d)
		}
	}
	switch {
	case len(fit) == 0 && l.tag != "":
		return v1.Descriptor{}, fmt.Errorf("it has no image with the tag %q; it has %.200s", l.tag, some(names))
	case len(fit) == 1:
		return fit[0], nil
	}
	if l.tag == "" && len(names) > 1 {
		return v1.Descriptor{}, fmt.Errorf("it has several images, %.200s: name the tag of one after a colon", some(names))
	}
	return choose(fit)
}

func (l layout) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return fetch(ctx, l, d)
}

func (l layout) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%q is no digest of the kind sha256", d.Digest)
	}
	r, _, err := l.open("blobs/sha256/" + d.Digest.Hex)
	return r, err
}

// folderFiles are the files of a folder. Links in it do not lead out of it.
type folderFiles struct{ *os.Root }

func (f folderFiles) open(name string) (io.ReadCloser, int64, error) {
	file, err := f.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	size, err := regular(file)
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, size, nil
}

func regular(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is no regular file", f.Name())
	}
	return info.Size(), nil
}

func openLayout(r Ref) (source, error) {
	root, err := os.OpenRoot(r.Path)
	if err != nil {
		return nil, err
	}
	return layout{folderFiles{root}, r.Tag}, nil
}

var _ blobs = layout{}
