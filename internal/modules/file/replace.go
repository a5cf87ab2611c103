package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"syscall"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

var errStale = errors.New("the file changed meanwhile")

// save is replace with errors for the model.
func save(p roots.Place, was fs.FileInfo, data []byte) (fs.FileInfo, error) {
	return saveBy(p, was, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// saveBy is save of what a function writes.
func saveBy(p roots.Place, was fs.FileInfo, data func(io.Writer) error) (fs.FileInfo, error) {
	now, err := replace(p, was, data)
	if errors.Is(err, errStale) {
		return nil, &tool.Refusal{Code: "stale", Message: p.Path + " was changed by somebody else meanwhile; nothing was written", Next: "Read it again and repeat the change."}
	}
	if err != nil {
		return nil, p.Refuse(err)
	}
	return now, nil
}

// replace puts data where p is, all of it or nothing, and returns the new
// file. The place must have been followed. was is the file as it was last
// seen, nil for none: if something else is there by now, errStale is returned
// and nothing happens. What is left between that look and the rename is too
// short to close without locks that every program would have to know.
//
// The file is never written in place. One that has other names (hard links) is
// parted from them: they may lie outside of the roots, or be a package
// manager's store.
func replace(p roots.Place, was fs.FileInfo, data func(io.Writer) error) (now fs.FileInfo, err error) {
	dir, base := filepath.Split(p.Name)
	parent, err := p.Root.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	temp := ".gatehouse-" + rand.Text() + ".tmp"
	ours, err := fill(parent, temp, was, data)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			parent.Remove(temp)
		}
	}()
	if now, err := parent.Lstat(base); !unchanged(was, now, err) {
		return nil, errStale
	}
	if err := parent.Rename(temp, base); err != nil {
		return nil, err
	}
	syncDir(parent)
	if now, err := parent.Lstat(base); err == nil && os.SameFile(now, ours) {
		return now, nil
	}
	return ours, nil // somebody was quicker; what we wrote was there
}

// fill makes the temporary file: complete, with the mode of the file it will
// replace, and on disk.
func fill(parent *os.Root, temp string, was fs.FileInfo, data func(io.Writer) error) (info fs.FileInfo, err error) {
	mode := fs.FileMode(0o644)
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
// we may. The fields are read by name, since their type differs by system.
func keepOwner(f *os.File, was fs.FileInfo) {
	uid, gid := owner(was)
	if uid >= 0 && (uid != os.Geteuid() || gid != os.Getegid()) {
		if f.Chown(uid, gid) != nil {
			f.Chown(-1, gid)
		}
	}
}

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

// unchanged compares what a change was computed from with what is there.
func unchanged(was, now fs.FileInfo, err error) bool {
	if was == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && os.SameFile(was, now) && was.Size() == now.Size() && was.ModTime().Equal(now.ModTime())
}

// syncDir makes the rename last through a power cut. Its failure is not the
// call's: the file is in place, and some systems cannot do it.
func syncDir(dir *os.Root) {
	if d, err := dir.Open("."); err == nil {
		d.Sync()
		d.Close()
	}
}

// mayWrite asks whether the file itself may be written. A rename would not
// mind, and a file somebody made read-only stays as it is.
func mayWrite(p roots.Place) error {
	f, err := p.Open(os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == "denied" {
		return &tool.Refusal{Code: "denied", Message: p.Path + " is read-only for this server"}
	}
	if err == nil {
		f.Close()
	}
	return nil // a running program cannot be opened for writing but can be replaced
}

// linked is the note on a file that was parted from its other names.
func linked(was fs.FileInfo) string {
	if was == nil || roots.Links(was) < 2 {
		return ""
	}
	return fmt.Sprintf("the file had %d names (hard links); only this one has the new content", roots.Links(was))
}

func makeParents(p roots.Place) error {
	dir := filepath.Dir(p.Name)
	if dir == "." {
		return nil
	}
	if err := p.Root.MkdirAll(dir, 0o755); err != nil {
		return p.Refuse(err)
	}
	return nil
}
