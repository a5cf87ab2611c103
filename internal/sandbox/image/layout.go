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

// files gives access to an image layout, in a folder or in a tar.
type files interface {
	// open opens a regular file and returns its size. It returns fs.ErrNotExist for an unknown name.
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// layout is an OCI image layout.
type layout struct {
	files
	tag string
}

// readSmall reads a small file.
func readSmall(in files, name string) ([]byte, error) {
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
	text, err := readSmall(l, "index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("the folder has no index.json: expected an OCI image layout, as written by " +
			"skopeo, buildah or docker save")
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

// tagged finds the image with the tag in a layout's index, or without a tag the only one for this machine.
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
		return v1.Descriptor{}, fmt.Errorf("no image has the tag %q; the tags are %.200s", l.tag, listed(names))
	case len(fit) == 1:
		return fit[0], nil
	}
	if l.tag == "" && len(names) > 1 {
		return v1.Descriptor{}, fmt.Errorf("it has several images, %.200s: add the tag of one after a colon",
			listed(names))
	}
	return choose(fit)
}

func (l layout) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return fetch(ctx, l, d)
}

func (l layout) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%q is not a sha256 digest", d.Digest)
	}
	r, _, err := l.open("blobs/sha256/" + d.Digest.Hex)
	return r, err
}

// folderFiles are the files of a folder. Links do not lead out of it.
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
		return 0, fmt.Errorf("%s is not a regular file", f.Name())
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
