package roots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"gatehouse/internal/files/merged"
)

// folder is one open folder. An *os.Root follows the directory it was opened on, even if that is renamed or
// deleted. A user who deletes a folder and creates it again means the new one, so each use compares the two.
type folder struct {
	name string
	path string // absolute, as configured
	real string // the same without symbolic links; this is opened

	// The fields of a folder that is a part of another one:
	above string // its name in there; "" for a whole one
	fixed bool   // it is what it was when it was opened, and closed soon
	lent  bool   // the caller of the constructor closes the root

	layer   *merged.Layer // the changes to the folder are kept apart for file tools; nil if it is a file system
	release func() error  // of the layer

	now atomic.Pointer[opened]

	mu     sync.Mutex // held while reopening or closing
	closed bool
}

type opened struct {
	root *os.Root
	info fs.FileInfo
}

func openFolder(path string) (*folder, error) {
	if path == "" {
		return nil, errors.New("open folder: its path is empty")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", path, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open folder %s: it does not exist", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", path, err)
	}
	f := &folder{path: abs, real: real}
	o, err := openReal(real)
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", path, err)
	}
	f.now.Store(o)
	return f, nil
}

func openReal(real string) (*opened, error) {
	before, err := os.Lstat(real)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, errors.New("it is not a directory")
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !os.SameFile(before, info) {
		err = errors.New("it changed while it was opened")
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &opened{root, info}, nil
}

// root returns the open folder. It opens the folder again if another directory has taken its place.
func (f *folder) root() (*os.Root, error) {
	o := f.now.Load()
	if f.fixed {
		return o.root, nil
	}
	info, err := os.Lstat(f.real)
	switch {
	case err == nil && os.SameFile(info, o.info):
		return o.root, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return o.root, nil // it cannot be examined by its path any more, but the open one still works
	}
	return f.reopen()
}

// reopen opens a directory only if its path contains no symbolic links. Otherwise a link in the place of an inner
// folder would lead out of the outer one.
//
// The old root is left to the garbage collector, because calls may still use it.
func (f *folder) reopen() (*os.Root, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fs.ErrClosed
	}
	real, err := filepath.EvalSymlinks(f.real)
	if err != nil {
		return nil, err
	}
	if real != f.real {
		return nil, errors.New("a symbolic link has taken its place")
	}
	o, err := openReal(real)
	if err != nil {
		return nil, err
	}
	f.now.Store(o)
	return o.root, nil
}

// has reports whether an open folder is this one.
func (f *folder) has(root *os.Root) bool {
	return f.now.Load().root == root || f.layer != nil && f.layer.Has(root)
}

func (f *folder) closeFolder() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.release != nil && !f.closed {
		f.closed = true
		return f.release()
	}
	f.closed = true
	if f.lent {
		return nil
	}
	return f.now.Load().root.Close()
}
