package roots

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

// Rename moves a file within one root.
func Rename(from, to Place) error { return between(from, to, os.Rename, (*os.Root).Rename) }

// Link gives a file a second name within one root.
func Link(from, to Place) error { return between(from, to, os.Link, (*os.Root).Link) }

// Remove deletes a file or an empty directory.
func (p Place) Remove() error {
	if info, err := p.Lstat(); p.layer != nil && err == nil && !info.IsDir() {
		return p.hide()
	}
	parent, base, err := p.Parent()
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Remove(base)
}

// RemoveAll deletes a directory with everything in it.
func (p Place) RemoveAll() error {
	if p.layer != nil {
		return p.hide()
	}
	parent, base, err := p.Parent()
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.RemoveAll(base)
}

// hide deletes a name of a layer without copying it before.
func (p Place) hide() error {
	parent, _, err := p.parentInUpper() // the guard decides
	if err != nil {
		return err
	}
	defer parent.Close()
	return p.layer.Hide(p.Name)
}

// between calls an operation with two names in directories that were opened and checked. If the system has paths
// for open directories, no part of either path is looked up again.
func between(from, to Place, byPath func(a, b string) error, byName func(r *os.Root, a, b string) error) error {
	a, err := from.openParent()
	if err != nil {
		return err
	}
	defer a.closeParent()
	b, err := to.openParent()
	if err != nil {
		return err
	}
	defer b.closeParent()
	if !pathsOfFiles() {
		root := from.Root
		if from.layer != nil {
			root = from.layer.Upper()
		}
		return byName(root, from.Name, to.Name)
	}
	return byPath(a.path(), b.path())
}

// pathsOfFiles reports whether the system has paths for open files.
var pathsOfFiles = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/fd")
	return runtime.GOOS == "linux" && err == nil
})

type openParent struct {
	root *os.Root
	dir  *os.File
	base string
}

func (p Place) openParent() (*openParent, error) {
	root, base, err := p.Parent()
	if err != nil {
		return nil, err
	}
	dir, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &openParent{root, dir, base}, nil
}

func (o *openParent) path() string { return fmt.Sprintf("/proc/self/fd/%d/%s", o.dir.Fd(), o.base) }

func (o *openParent) closeParent() {
	o.dir.Close()
	o.root.Close()
}
