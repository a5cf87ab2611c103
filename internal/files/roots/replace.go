package roots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"

	"gatehouse/internal/files/filelock"
)

// ErrStale says that a file is not the one a change was computed from.
var ErrStale = errors.New("the file changed meanwhile")

// Replace puts a file where p is, all of it or nothing, and returns it. The
// place must have been followed. was is the file as it was last seen, nil for
// none: if something else is there by now, ErrStale is returned and nothing
// happens. That comparison and the rename are one step among all that replace
// files this way, in this process and in others: they hold the directory, by
// hold or, if that is nil, for the moment. The caller keeps the file of was open
// so that the system gives its number to no other. Between the comparison and
// the rename, programs that do not know the lock have a few microseconds; where
// there was no file, nothing is ever replaced on file systems that can link.
//
// data fills the new file. One that replaces another has its mode and, where we
// may, its owner; mode, less the umask, is for one where there was none.
//
// The file is never written in place. One that has other names (hard links) is
// parted from them: they may lie outside of the roots, or be a package
// manager's store.
func (w *Writer) Replace(
	ctx context.Context, hold *Hold, p Place, was fs.FileInfo, mode fs.FileMode, data func(*os.File) error,
) (now fs.FileInfo, err error) {
	parent, base, err := p.Parent()
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
		err = swap(parent, temp, base, was)
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
	return ours, nil // another process was quicker; what we wrote was there
}

// swap gives the temporary file its name, unless was is not what has it.
func swap(parent *os.Root, temp, base string, was fs.FileInfo) error {
	now, err := parent.Lstat(base)
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
	return parent.Rename(temp, base) // no second names on this file system
}

// writeTemp makes the temporary file: complete, with the mode of the file it will
// replace, and on disk.
func (w *Writer) writeTemp(
	parent *os.Root,
	temp string,
	was fs.FileInfo,
	mode fs.FileMode,
	data func(*os.File) error,
) (info fs.FileInfo, err error) {
	if was != nil {
		mode = 0o600 // until it has its owner
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
	// A file that is locked is no leftover. Where it cannot be locked, no writer
	// removes leftovers.
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

// keepOwner gives f the owner and group of was where the system has them and
// we may.
func keepOwner(f *os.File, was fs.FileInfo) {
	uid, gid := owner(was)
	if uid >= 0 && (uid != os.Geteuid() || gid != os.Getegid()) {
		if f.Chown(uid, gid) != nil {
			f.Chown(-1, gid)
		}
	}
}

// owner is -1 where the system does not tell. The fields are read by name,
// since their type differs by system.
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

// syncDir makes the rename last through a power cut. Its failure is not the
// call's: the file is in place, and some systems cannot do it.
func syncDir(dir *os.Root) {
	if d, err := dir.Open("."); err == nil {
		d.Sync()
		d.Close()
	}
}
