package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// unpacker applies the layers of an image in order.
type unpacker struct {
	tree
	streamed int64     // unpacked bytes of all layers so far
	came     func(int) // called with the number of stored bytes read

	// ofPackage says that the image is a package's: what does not belong to root is unpacked so that others may do
	// what its owner may, because an image that its registry has holds nothing secret.
	ofPackage bool
	owners    map[string]string // UID:GID of what does not belong to root, by resolved path
}

// unpack applies the layers of an image in an empty folder.
func unpack(
	ctx context.Context, root *os.Root, layers []layer, most Limits, ofPackage bool, came func(int),
) (*unpacker, error) {
	u := &unpacker{tree: tree{root: root, most: most}, came: came, ofPackage: ofPackage}
	defer u.closeFolder()
	for i, l := range layers {
		if err := u.layer(ctx, l); err != nil {
			return nil, fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
	}
	return u, root.Chmod(".", 0o755)
}

func (u *unpacker) layer(ctx context.Context, l layer) error {
	t, err := l.readLayer(ctx, u.most.Bytes-u.streamed, u.most.Ratio, u.came)
	if err != nil {
		return err
	}
	defer t.Close()
	u.mine = map[string]bool{}
	r := tar.NewReader(t)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(ctx, h, r); err != nil {
			return err
		}
	}
	if err := t.verify(); err != nil {
		return err
	}
	u.streamed += t.content.n
	return nil
}

// Names that mark removed files in a layer (whiteouts).
const (
	whiteoutPrefix = ".wh."         // followed by the name of the removed file
	opaqueMarker   = ".wh..wh..opq" // removes everything that lower layers have in this folder
	aufs           = ".wh..wh."     // internal files of aufs, ignored
)

func (u *unpacker) entry(ctx context.Context, h *tar.Header, r io.Reader) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return u.charge("", 0)
	}
	parts, err := u.parts(h.Name)
	if err != nil {
		return err
	}
	if err := u.charge(h.Name, h.Size); err != nil {
		return err
	}
	if len(parts) == 0 {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%q is not a folder", h.Name)
		}
		return nil
	}
	above, base := parts[:len(parts)-1], parts[len(parts)-1]
	if strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(above, base)
	}
	is, dir, err := u.openFolder(above, true)
	if err != nil {
		return err
	}
	return u.writeEntry(ctx, entry{h, path.Join(is, base), base}, dir, r)
}

// whiteout removes what lower layers have.
func (u *unpacker) whiteout(above []string, base string) error {
	name := strings.TrimPrefix(base, whiteoutPrefix)
	switch {
	case base == opaqueMarker:
		name = "."
	case strings.HasPrefix(base, aufs):
		return nil
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q names no file to remove", base)
	}
	is, err := u.resolve(above, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if name == "." {
		return u.emptyLower(is)
	}
	return u.removeLower(path.Join(is, name))
}

// entry is a member of a layer with its position in the tree.
type entry struct {
	*tar.Header
	is   string // its path, resolved except for the last element
	base string
}

// writeEntry creates an entry in its folder. It removes an existing file first, unless both are folders; an existing
// file is never written to, because it may have other hard links.
func (u *unpacker) writeEntry(ctx context.Context, e entry, dir *os.Root, r io.Reader) error {
	old := ""
	if e.Typeflag == tar.TypeLink {
		var err error
		if old, err = u.linked(e); err != nil || old == e.is {
			return err
		}
	}
	there, err := dir.Lstat(e.base)
	if err == nil && !(there.IsDir() && e.Typeflag == tar.TypeDir) {
		if err := dir.RemoveAll(e.base); err != nil {
			return err
		}
		defer u.closeFolder() // resolved paths may have changed
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch e.Typeflag {
	case tar.TypeDir:
		err = u.putFolder(e, dir, there)
	case tar.TypeReg, tar.TypeGNUSparse, '7': // 7 is a contiguous file
		err = u.putFile(ctx, e, dir, r)
	case tar.TypeSymlink:
		err = putLink(e, dir)
	case tar.TypeLink:
		err = u.root.Link(old, e.is)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil // a sandbox has its own
	default:
		err = fmt.Errorf("%.200q has the unknown type %q", e.Name, e.Typeflag)
	}
	if err != nil {
		return err
	}
	u.markMade(e.is)
	delete(u.owners, e.is)
	if e.Uid|e.Gid != 0 && e.Uid|e.Gid < 1<<16 {
		if u.owners == nil {
			u.owners = map[string]string{}
		}
		u.owners[e.is] = fmt.Sprintf("%d:%d", e.Uid, e.Gid)
	}
	return nil
}

// mode returns the permissions of an entry.
func (u *unpacker) mode(e entry) fs.FileMode {
	mode := e.FileInfo().Mode().Perm()
	if u.ofPackage && e.Uid != 0 {
		mode |= mode >> 6 & 0o7
	}
	return mode
}

func (u *unpacker) putFolder(e entry, dir *os.Root, there fs.FileInfo) error {
	if there == nil || !there.IsDir() {
		if err := dir.Mkdir(e.base, 0o700); err != nil {
			return err
		}
	}
	return dir.Chmod(e.base, othersMode(fs.ModeDir|u.mode(e)))
}

func (u *unpacker) putFile(ctx context.Context, e entry, dir *os.Root, r io.Reader) error {
	f, err := dir.OpenFile(e.base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, untilDone{ctx, r})
	err = errors.Join(err, f.Chmod(othersMode(u.mode(e))), f.Close())
	if err != nil {
		return err
	}
	when := time.Unix(min(max(e.ModTime.Unix(), 0), 1<<33), 0)
	return dir.Chtimes(e.base, when, when)
}

// untilDone fails when ctx ends. The hole of a sparse file is read without touching the layer, so nothing else
// would notice.
type untilDone struct {
	// ctx is a field because io.Reader has no parameter for it.
	ctx context.Context
	io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// putLink creates a symbolic link with any target: it is followed only inside the tree and in the sandbox.
func putLink(e entry, dir *os.Root) error {
	if len(e.Linkname) == 0 || len(e.Linkname) > longestName || strings.IndexByte(e.Linkname, 0) >= 0 {
		return fmt.Errorf("%.200q links to a name of %d bytes; it may have 1 to %d and no zero byte", e.Name,
			len(e.Linkname), longestName)
	}
	return dir.Symlink(e.Linkname, e.base)
}

// linked finds the target of a hard link.
func (u *unpacker) linked(e entry) (is string, err error) {
	parts, err := u.parts(e.Linkname)
	if err != nil || len(parts) == 0 {
		return "", fmt.Errorf("%.200q is a hard link to %.200q, which is not a file of the image", e.Name, e.Linkname)
	}
	if is, err = u.resolve(parts[:len(parts)-1], false); err != nil {
		return "", fmt.Errorf("%.200q is a hard link to %.200q: %w", e.Name, e.Linkname, err)
	}
	is = path.Join(is, parts[len(parts)-1])
	info, err := u.root.Lstat(is)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		return "", fmt.Errorf("%.200q is a hard link to %.200q, which is not a file", e.Name, e.Linkname)
	}
	return is, nil
}
