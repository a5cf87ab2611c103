package roots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"gatehouse/internal/files/filelock"
)

// ErrStale means that a file has changed since the change was computed.
var ErrStale = errors.New("the file changed meanwhile")

// Replace writes a complete file at p, whose name must have been followed, and returns it open. was is the file as
// last seen, nil if there was none: if the current file differs, Replace returns ErrStale and changes nothing. The
// comparison and the rename are one step for all writers that use Replace, in this process and others, because they
// hold the directory: hold, or a Hold of its own if hold is nil. The caller keeps was's file open, so that the
// system does not reuse its number. Programs that do not use the lock have a few microseconds between the
// comparison and the rename. If there was no file, none is ever replaced on file systems with links.
//
// data writes the content. A new version of a file keeps the mode and, if permitted, the owner; mode, less the
// umask, is for a new file.
//
// The file is never written in place. Its other names (hard links) keep the old content, because they may be
// outside of the roots or belong to a package manager's store.
func (w *Writer) Replace(
	ctx context.Context, hold *Hold, p Place, was fs.FileInfo, mode fs.FileMode, data func(*os.File) error,
) (now fs.FileInfo, err error) {
	parent, base, err := p.parentInUpper()
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	temp := tempName()
	ours, err := w.writeTemp(parent, temp, was, mode, data)
	if err != nil {
		return nil, err
	}
	var moment *Hold
	if hold == nil {
		moment, err = w.holdOpen(ctx, parent)
	}
	if err == nil {
		err = p.swap(parent, temp, base, was)
	}
	var nerr error
	if err == nil {
		now, nerr = parent.Lstat(base)
	}
	moment.Release()
	if err != nil {
		parent.Remove(temp)
		return nil, err
	}
	syncDir(parent)
	w.clearLeftovers(p, parent)
	if nerr == nil && os.SameFile(now, ours) {
		return now, nil
	}
	return ours, nil // another process was faster; the file was in place until then
}

// parentInUpper is Parent for a name that is replaced as a whole, so that its content need not be copied before.
func (p Place) parentInUpper() (*os.Root, string, error) {
	if p.layer == nil {
		return p.Parent()
	}
	dir, base := filepath.Split(p.Name)
	root, err := p.layer.At(filepath.Clean(dir), true)
	if err != nil {
		return nil, "", err
	}
	p.Root = root
	return p.parent(dir, base)
}

// swap renames the temporary file, unless the name does not belong to was any more. In a layer, what the folder itself
// has at the name is hidden.
func (p Place) swap(parent *os.Root, temp, base string, was fs.FileInfo) error {
	if p.layer == nil {
		return swap(parent, temp, base, was, parent.Lstat)
	}
	err := swap(parent, temp, base, was, func(string) (fs.FileInfo, error) { return p.layer.Lstat(p.Name) })
	if err == nil {
		err = p.layer.Cut(p.Name)
	}
	return err
}

func swap(
	parent *os.Root, temp, base string, was fs.FileInfo, lstat func(string) (fs.FileInfo, error),
) error {
	now, err := lstat(base)
	if was != nil {
		if err != nil || !os.SameFile(was, now) || was.Size() != now.Size() || !was.ModTime().Equal(now.ModTime()) {
			return ErrStale
		}
		return parent.Rename(temp, base)
	}
	if err == nil {
		err = fs.ErrExist
	} else if err = parent.Link(temp, base); err == nil {
		parent.Remove(temp)
		return nil
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrStale, fs.ErrExist)
	}
	return parent.Rename(temp, base) // this file system has no links
}

// writeTemp creates the temporary file, completely written to disk, with the mode of the file that it will replace.
func (w *Writer) writeTemp(
	parent *os.Root,
	temp string,
	was fs.FileInfo,
	mode fs.FileMode,
	data func(*os.File) error,
) (info fs.FileInfo, err error) {
	if was != nil {
		mode = 0o600 // until its owner is set
	}
	f, err := parent.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			parent.Remove(temp)
		}
	}()
	// A locked file is not a leftover. If it cannot be locked, no writer removes leftovers here.
	filelock.TryOpen(f, filelock.Exclusive)
	if was != nil {
		keepOwner(f, was)
		if err := f.Chmod(was.Mode().Perm()); err != nil {
			return nil, err
		}
	}
	if err := data(f); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	return f.Stat()
}

// keepOwner gives f the owner and group of was, if the system has them and permits it.
func keepOwner(f *os.File, was fs.FileInfo) {
	uid, gid := owner(was)
	if uid >= 0 && (uid != os.Geteuid() || gid != os.Getegid()) {
		if f.Chown(uid, gid) != nil {
			f.Chown(-1, gid)
		}
	}
}

// owner returns -1 if the system does not report owners. The fields are read by name, because their types differ
// between systems.
func owner(info fs.FileInfo) (uid, gid int) {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return -1, -1
	}
	u, g := v.FieldByName("Uid"), v.FieldByName("Gid")
	if !u.IsValid() || !g.IsValid() || !u.CanUint() || !g.CanUint() {
		return -1, -1
	}
	return int(u.Uint()), int(g.Uint())
}

// syncDir makes the rename durable. Its failure is not an error, because the file is in place and some systems
// cannot sync a directory.
func syncDir(dir *os.Root) {
	if d, err := dir.Open("."); err == nil {
		d.Sync()
		d.Close()
	}
}
