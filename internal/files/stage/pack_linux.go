//go:build !portable

package stage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attributeRecord begins the names of records with extended attributes, as in GNU tar and libarchive.
const attributeRecord = "SCHILY.xattr."

// packer writes the folder of a task to an archive. Paths are resolved below the folder, because programs of the task
// may change it meanwhile.
type packer struct {
	ctx   context.Context // a field because each of its methods calls the next for a name
	root  *os.Root
	w     *tar.Writer
	links map[[2]uint64]string // of files with several names: the first
	names int
}

// pack writes the task to a file. The task is locked.
func (t *Task) pack(ctx context.Context, to string) error {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p := &packer{ctx: ctx, root: root, w: tar.NewWriter(file), links: map[[2]uint64]string{}}
	return errors.Join(p.folder("."), p.w.Close(), file.Close())
}

// folder packs what is in a folder.
func (p *packer) folder(name string) error {
	d, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	entries, err := readDir(d)
	d.Close()
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.entry(path.Join(name, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("pack %s: %w", path.Join(name, e.Name()), err)
		}
	}
	return nil
}

func (p *packer) entry(name string) error {
	if name == "lock" || name == "calls" || name == privateFolder { // they belong to processes
		return nil
	}
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	s, err := stateIn(info)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Name: name, Mode: int64(s.Mode), Uid: s.UID, Gid: s.GID, ModTime: time.Unix(0, s.MTime), Format: tar.FormatPAX,
	}
	switch s.Type {
	case whiteout:
		h.Typeflag = tar.TypeChar
	case Pipe:
		h.Typeflag = tar.TypeFifo
	case Link:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
	case File, Folder:
		return p.opened(name, h, s)
	default:
		return nil // sockets end with their programs, and devices are never staged
	}
	return p.header(h)
}

func (p *packer) header(h *tar.Header) error {
	if p.names++; p.names > mostPacked {
		return fmt.Errorf("more than %d names", mostPacked)
	}
	return p.w.WriteHeader(h)
}

// opened packs a file or a folder, with its attributes.
func (p *packer) opened(name string, h *tar.Header, s State) error {
	f, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := stateIn(info); err != nil || now.Type != s.Type {
		return errors.Join(err, fs.ErrNotExist) // another one by now
	}
	if h.PAXRecords, err = attributeRecords(f); err != nil {
		return err
	}
	if s.Type == Folder {
		h.Typeflag = tar.TypeDir
		if err := p.header(h); err != nil || path.Base(name) == "work" && path.Dir(path.Dir(name)) == "layers" {
			return err // what is in the work folder of an overlay is the kernel's
		}
		return p.folder(name)
	}
	if s.Links > 1 {
		id := [2]uint64{s.Dev, s.Ino}
		if first := p.links[id]; first != "" {
			h.Typeflag, h.Linkname, h.PAXRecords = tar.TypeLink, first, nil
			return p.header(h)
		}
		p.links[id] = name
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.header(h); err != nil {
		return err
	}
	n, err := io.Copy(p.w, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(p.w, zeros{}, h.Size-n) // it became shorter meanwhile
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// attributeRecords returns the extended attributes of users and of the overlay as records of an archive.
func attributeRecords(f *os.File) (map[string]string, error) {
	all, _, err := attributesOf(f)
	if err != nil {
		return nil, err
	}
	records := map[string]string{}
	for name, value := range all {
		records[attributeRecord+name] = string(value)
	}
	value := make([]byte, 64<<10)
	for _, name := range []string{owned + "opaque", owned + "origin"} {
		if n, err := unix.Fgetxattr(int(f.Fd()), name, value); err == nil {
			records[attributeRecord+name] = string(value[:n])
		}
	}
	return records, nil
}

// unpack fills a folder with an archive. It makes what pack writes, and refuses everything else.
func unpack(root *os.Root, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	var folders []*tar.Header // whose times are set at the end
	r := tar.NewReader(f)
	for names := 0; ; names++ {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		h.Name = path.Clean(h.Name) // folders end with a slash
		if names >= mostPacked || !fs.ValidPath(h.Name) || h.Name == "." {
			return fmt.Errorf("the archive has the name %.200q", h.Name)
		}
		if h.Typeflag == tar.TypeDir {
			folders = append(folders, h)
		}
		if err := unpackOne(root, h, r); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
	}
	for _, h := range slices.Backward(folders) {
		if err := finish(root, h, unix.O_DIRECTORY); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
	}
	return nil
}

func unpackOne(root *os.Root, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return root.Mkdir(h.Name, 0o700)
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(copySparse(f, content, h.Size), f.Close()); err != nil {
			return err
		}
		return finish(root, h, 0)
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, h.Name); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			_ = root.Lchown(h.Name, h.Uid, h.Gid)
		}
		return linkTime(root, h.Name, h.ModTime.UnixNano())
	case tar.TypeLink:
		if info, err := root.Lstat(h.Linkname); err != nil || !info.Mode().IsRegular() {
			return errors.Join(err, errors.New("it is another name of what is no file"))
		}
		return root.Link(h.Linkname, h.Name)
	case tar.TypeFifo:
		if err := makePipe(root, h.Name, uint32(h.Mode)&0o777); err != nil {
			return err
		}
		return linkTime(root, h.Name, h.ModTime.UnixNano())
	case tar.TypeChar:
		if h.Devmajor == 0 && h.Devminor == 0 {
			return makeWhiteout(root, h.Name)
		}
	}
	return fmt.Errorf("no task has an entry of the type %q", h.Typeflag)
}

// makeWhiteout makes the mark of a deleted name, which every user may make.
func makeWhiteout(root *os.Root, name string) error {
	dir, base, err := openParent(root, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Mknodat(int(dir.Fd()), base, unix.S_IFCHR, 0)
}

// finish gives a file or folder its owner, mode, attributes and time.
func finish(root *os.Root, h *tar.Header, flags int) error {
	f, err := root.OpenFile(h.Name, os.O_RDONLY|unix.O_NOFOLLOW|flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	s := State{Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid, MTime: h.ModTime.UnixNano(), Attributes: map[string][]byte{}}
	for name, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(name, attributeRecord); ok {
			if !strings.HasPrefix(name, "user.") {
				return fmt.Errorf("it has the attribute %.100q", name)
			}
			s.Attributes[name] = []byte(value)
		}
	}
	return dressOpen(f, s)
}

// hole is the size of the blocks that stay holes if they are empty.
const hole = 64 << 10

// copySparse copies n bytes and leaves holes where there are zeros.
func copySparse(to *os.File, from io.Reader, n int64) error {
	block, empty := make([]byte, hole), make([]byte, hole)
	for at := int64(0); at < n; {
		part := block[:min(n-at, hole)]
		if _, err := io.ReadFull(from, part); err != nil {
			return err
		}
		if !bytes.Equal(part, empty[:len(part)]) {
			if _, err := to.WriteAt(part, at); err != nil {
				return err
			}
		}
		at += int64(len(part))
	}
	return to.Truncate(n)
}
