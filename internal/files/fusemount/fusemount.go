// Package fusemount mounts a read-only tree of files whose content a function of
// this process returns. It needs FUSE of Linux: /dev/fuse, and either the
// capability SYS_ADMIN or the program fusermount3. Supported tells what is missing.
//
// Only processes with the user id of this process can enter a mount, which holds no
// devices and runs no programs. If this process is killed, its mounts stay in the
// table of mounts and fail every access until Unmount removes them.
package fusemount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strings"
	"sync/atomic"
	"time"
)

// Errors of Mount and Unmount.
var (
	ErrInUse      = errors.New("a process has a file or its working folder in the mount")
	ErrNotMounted = errors.New("nothing is mounted there")
)

// Unsupported is the error of Supported.
type Unsupported struct {
	Reason string // what is missing
	Fix    string // how to install it; "" if nothing can be installed
}

func (e *Unsupported) Error() string {
	if e.Fix == "" {
		return e.Reason
	}
	return e.Reason + ": " + e.Fix
}

// Supported returns nil if this process can mount, else an *Unsupported. It mounts
// nothing.
func Supported() error { return supported() }

// File is a file of a mount.
type File struct {
	Path     string // slash-separated, valid for fs.ValidPath
	Size     int64
	Modified time.Time
}

// Options of a Mount. All but Log are required.
type Options struct {
	Folder string // an empty folder that exists; absolute
	Files  []File
	// Read fills p with the content of Files[file] from off on. p ends within the
	// file. ctx is done when the reader gives up. Read is called concurrently.
	Read func(ctx context.Context, file int, p []byte, off int64) error
	Log  *slog.Logger // nil discards the log
}

// Mount is a mounted tree. It is safe for concurrent use.
type Mount struct {
	o    Options
	used atomic.Int64 // time of the last access, in nanoseconds
	done chan struct{}
}

// New mounts a tree. The caller ends it with Unmount.
func New(o Options) (*Mount, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	root, err := newTree(o.Files)
	if err != nil {
		return nil, err
	}
	m := &Mount{o: o, done: make(chan struct{})}
	m.touch()
	return m, m.serve(root)
}

// Done is closed when the mount has ended, also if another process unmounted it.
func (m *Mount) Done() <-chan struct{} { return m.done }

// LastUse returns the time of the last access.
func (m *Mount) LastUse() time.Time { return time.Unix(0, m.used.Load()) }

func (m *Mount) touch() { m.used.Store(time.Now().UnixNano()) }

// Unmount unmounts a folder that this process, or another one of the same user,
// mounted with New. It returns ErrInUse if a process uses the mount, unless force is
// true: then that process gets errors. It returns ErrNotMounted if there is no such
// mount.
func Unmount(folder string, force bool) error { return unmount(folder, force) }

// entry is a file or folder of the tree.
type entry struct {
	name     string
	ino      uint64
	file     int      // index of the file; -1 for a folder
	children []*entry // in the order of the files, since content may be read faster in it
	byName   map[string]*entry
}

const (
	longestName = 255 // bytes, of the kernel
	deepest     = 200 // folders
)

// newTree returns the root of a tree. It refuses names that the kernel cannot show.
func newTree(files []File) (*entry, error) {
	next := uint64(1)
	folder := func(name string) *entry {
		next++
		return &entry{name: name, ino: next - 1, file: -1, byName: map[string]*entry{}}
	}
	root := folder("")
	for i, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." || f.Size < 0 || strings.ContainsRune(f.Path, 0) ||
			strings.Count(f.Path, "/") > deepest {
			return nil, fmt.Errorf("the file %.100q cannot be mounted: its name or size is not valid", f.Path)
		}
		in := root
		dir, name := path.Split(f.Path)
		for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
			if part == "" {
				continue
			}
			sub := in.byName[part]
			if sub == nil {
				sub = folder(part)
				in.insert(sub)
			}
			if in = sub; in.file >= 0 || len(part) > longestName {
				return nil, fmt.Errorf("the file %.100q cannot be mounted: %.60q is not a folder", f.Path, part)
			}
		}
		if in.byName[name] != nil || len(name) > longestName {
			return nil, fmt.Errorf("the file %.100q cannot be mounted: its name is too long or not unique", f.Path)
		}
		in.insert(&entry{name: name, ino: next, file: i})
		next++
	}
	return root, nil
}

func (e *entry) insert(child *entry) {
	e.children = append(e.children, child)
	e.byName[child.name] = child
}
