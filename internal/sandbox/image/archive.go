package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const mostMembers = 100_000 // files in an archive

// archive is a tar whose members are read in place.
type archive struct {
	file    *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // path of another member
}

func openArchive(r Ref) (source, error) {
	f, err := os.OpenFile(r.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	a := archive{file: f, members: map[string]member{}}
	if err := a.readArchive(); err != nil {
		f.Close()
		return nil, err
	}
	if _, ok := a.members["index.json"]; ok {
		return layout{a, r.Tag}, nil
	}
	return saved{a, r.Tag}, nil
}

// readArchive indexes the members.
func (a archive) readArchive() error {
	size, err := regular(a.file)
	if err != nil {
		return err
	}
	var magic [4]byte
	if _, err := io.ReadFull(a.file, magic[:]); err != nil {
		return fmt.Errorf("not a tar: %w", err)
	}
	if packed(magic[:]) != plain {
		return errors.New("the archive is compressed as a whole: uncompress it first")
	}
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for t := tar.NewReader(a.file); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if len(a.members) >= mostMembers {
			return fmt.Errorf("the archive has more than %d members", mostMembers)
		}
		at, err := a.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		switch name := path.Clean(h.Name); h.Typeflag {
		case tar.TypeReg:
			if at+h.Size > size {
				return fmt.Errorf("the archive is truncated inside %q", h.Name)
			}
			a.members[name] = member{offset: at, size: h.Size}
		case tar.TypeSymlink:
			a.members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.members[name] = member{link: path.Clean(h.Linkname)}
		}
	}
}

func (a archive) open(name string) (io.ReadCloser, int64, error) {
	for range 8 {
		m, ok := a.members[path.Clean(name)]
		if !ok {
			break
		}
		if m.link == "" {
			return io.NopCloser(io.NewSectionReader(a.file, m.offset, m.size)), m.size, nil
		}
		name = m.link
	}
	return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (a archive) Close() error { return a.file.Close() }

// saved is the old format of docker save, before it wrote image layouts. Its layers are identified by their
// content alone.
type saved struct {
	archive
	tag string
}

type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (s saved) find(context.Context) (*found, error) {
	text, err := readSmall(s, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("the archive has neither index.json nor manifest.json: expected an OCI image " +
			"layout, or an archive of docker save")
	}
	if err != nil {
		return nil, err
	}
	var all []savedImage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("decode manifest.json: %w", err)
	}
	one, err := s.tagged(all)
	if err != nil {
		return nil, err
	}
	if text, err = readSmall(s, one.Config); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	var layers []layer
	for _, name := range one.Layers {
		_, size, err := s.open(name)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer{size: size, open: func(context.Context) (io.ReadCloser, error) {
			r, _, err := s.open(name)
			return r, err
		}})
	}
	id := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(text))}
	return byConfig(id, text, layers)
}

func (s saved) tagged(all []savedImage) (savedImage, error) {
	var names []string
	var fit []savedImage
	for _, one := range all {
		names = append(names, one.RepoTags...)
		for _, name := range one.RepoTags {
			if s.tag != "" && strings.HasSuffix(name, ":"+s.tag) {
				fit = append(fit, one)
				break
			}
		}
	}
	if s.tag == "" {
		fit = all
	}
	if len(fit) != 1 {
		return savedImage{}, fmt.Errorf("%d images match the tag %q, expected one: it has %.200s", len(fit),
			s.tag, listed(names))
	}
	return fit[0], nil
}
