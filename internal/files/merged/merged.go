// Package merged reads folders together with changes that are kept in other folders, and keeps such changes.
//
// It does in this process what an overlay file system does in the kernel, for file tools alone: programs do not see it.
// A Layer has the folder itself, which it never changes, and a folder of its own with two trees. Upper has what was
// written, as the upper folder of an overlay has it. Cuts has an empty file for each name at which the folder itself is
// not shown any more: what was deleted, or replaced as a whole.
package merged

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Folder is an open folder that is read: an *os.Root, or one of a Layer. Names lead out of neither.
type Folder interface {
	Name() string
	Open(name string) (*os.File, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	ReadFile(name string) ([]byte, error)
	FS() fs.FS
	Close() error
}

// Listing reads the names in a folder, as an *os.File does.
type Listing interface {
	ReadDir(n int) ([]fs.DirEntry, error)
	Readdirnames(n int) ([]string, error)
	Close() error
}

// Enter opens a folder in a folder. The caller closes it.
func Enter(f Folder, name string) (Folder, error) {
	switch f := f.(type) {
	case *os.Root:
		r, err := f.OpenRoot(filepath.FromSlash(name))
		if err != nil {
			return nil, err
		}
		return r, nil
	case *folder:
		return f.enter(name)
	}
	return nil, errors.ErrUnsupported
}

// List opens the listing of a folder. The caller closes it.
func List(f Folder) (Listing, error) {
	if f, ok := f.(*folder); ok {
		return f.layer.list(f.name)
	}
	d, err := f.OpenFile(".", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// folder is an open folder of a layer. It is read only.
type folder struct {
	layer *Layer
	name  string // in the layer, without links
}

func (f *folder) Name() string { return filepath.Join(f.layer.Path(), f.name) }
func (f *folder) Close() error { return nil }
func (f *folder) FS() fs.FS    { return folderFS{f} }

func (f *folder) enter(name string) (Folder, error) {
	at, err := f.layer.follow(f.name, name, true)
	if err != nil {
		return nil, err
	}
	info, err := f.layer.Lstat(at)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	return &folder{f.layer, at}, nil
}

func (f *folder) Open(name string) (*os.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

func (f *folder) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return through(f, name, true, func(r *os.Root, at string) (*os.File, error) { return r.OpenFile(at, flag, perm) })
}

func (f *folder) Stat(name string) (fs.FileInfo, error) {
	return through(f, name, true, (*os.Root).Lstat)
}
func (f *folder) Lstat(name string) (fs.FileInfo, error) {
	return through(f, name, false, (*os.Root).Lstat)
}
func (f *folder) Readlink(name string) (string, error) {
	return through(f, name, false, (*os.Root).Readlink)
}
func (f *folder) ReadFile(name string) ([]byte, error) {
	return through(f, name, true, (*os.Root).ReadFile)
}

// through runs an operation on a name, with links followed, in the tree that has it.
func through[T any](f *folder, name string, last bool, op func(*os.Root, string) (T, error)) (v T, err error) {
	at, err := f.layer.follow(f.name, name, last)
	if err != nil {
		return v, err
	}
	return op(f.layer.Find(at), at)
}

// folderFS is a folder of a layer as an fs.FS.
type folderFS struct{ f *folder }

func (s folderFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return s.f.Open(name)
}

func (s folderFS) Stat(name string) (fs.FileInfo, error) { return s.f.Stat(name) }

func (s folderFS) ReadDir(name string) ([]fs.DirEntry, error) {
	sub, err := s.f.enter(name)
	if err != nil {
		return nil, err
	}
	d, err := List(sub)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all, err := d.ReadDir(-1)
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, err
}

// listing is that of a folder of a layer: what was written, then what the folder itself has besides.
type listing struct {
	upper []fs.DirEntry
	lower *os.File // nil if it is not shown
	shows func(name string) bool
}

func (l *listing) ReadDir(n int) (all []fs.DirEntry, err error) {
	if n > 0 && len(l.upper) > 0 {
		n = min(n, len(l.upper))
		all, l.upper = l.upper[:n], l.upper[n:]
		return all, nil
	}
	all, l.upper = l.upper, nil
	for l.lower != nil {
		more, err := l.lower.ReadDir(n)
		for _, e := range more {
			if l.shows(e.Name()) {
				all = append(all, e)
			}
		}
		if n <= 0 || len(all) > 0 || err != nil {
			return all, err
		}
	}
	if n > 0 {
		err = io.EOF
	}
	return all, err
}

func (l *listing) Readdirnames(n int) (names []string, err error) {
	all, err := l.ReadDir(n)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, err
}

func (l *listing) Close() error {
	if l.lower == nil {
		return nil
	}
	return l.lower.Close()
}

// list returns the listing of a folder, whose name has no links.
func (l *Layer) list(name string) (Listing, error) {
	out := &listing{}
	info, err := l.upper.Lstat(name)
	has := err == nil
	if has && info.IsDir() {
		d, err := l.upper.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		out.upper, err = d.ReadDir(-1)
		d.Close()
		if err != nil {
			return nil, err
		}
	}
	switch {
	case has && !info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	case !l.shows(name):
		if !has {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return out, nil
	}
	there, err := l.lower.Lstat(name)
	if err == nil && !there.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		if has {
			return out, nil
		}
		return nil, err
	}
	if out.lower, err = l.lower.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	written := map[string]bool{}
	for _, e := range out.upper {
		written[key(e.Name())] = true
	}
	out.shows = func(one string) bool { return !written[key(one)] && !l.isCut(path.Join(name, one)) }
	return out, nil
}

// key returns what two names of one file have in common.
func key(name string) string {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		return strings.ToLower(name)
	}
	return name
}
