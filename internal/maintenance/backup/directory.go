package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// abandoned is the age at which unfinished backups are removed.
const abandoned = 24 * time.Hour

// place is a folder of this machine or of a file server.
type place interface {
	ReadDir() ([]fs.FileInfo, error)
	Open(name string) (placeFile, error)
	Create(name string) (placeFile, error) // fails if it exists; only the user may read it
	Rename(from, to string) error
	Remove(name string) error
	Sync() error
	Close() error
}

type placeFile interface {
	io.ReadWriteCloser
	Stat() (fs.FileInfo, error)
	Sync() error
}

// folder is a store in a place.
type folder struct{ at place }

func (f *folder) close() error { return f.at.Close() }

func (f *folder) list(context.Context) (all []Entry, err error) {
	there, err := f.at.ReadDir()
	if err != nil {
		return nil, err
	}
	for _, info := range there {
		if at, err := createdOf(info.Name()); err == nil && info.Mode().IsRegular() {
			all = append(all, Entry{Name: info.Name(), Created: at, Size: info.Size()})
		}
	}
	return all, nil
}

// create also removes unfinished backups that were abandoned a day ago.
func (f *folder) create(_ context.Context, name string) (upload, error) {
	there, err := f.at.ReadDir()
	if err != nil {
		return nil, err
	}
	for _, info := range there {
		if isUnfinished(info.Name()) && time.Since(info.ModTime()) > abandoned {
			f.at.Remove(info.Name())
		}
	}
	file, err := f.at.Create(unfinished(name))
	if err != nil {
		return nil, err
	}
	return &folderUpload{folder: f, name: name, file: file}, nil
}

func (f *folder) open(_ context.Context, name string) (io.ReadCloser, int64, error) {
	file, err := f.at.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

func (f *folder) remove(_ context.Context, name string) error { return f.at.Remove(name) }

type folderUpload struct {
	folder *folder
	name   string
	file   placeFile // nil after it was closed
	done   bool
}

func (u *folderUpload) Write(p []byte) (int, error) { return u.file.Write(p) }

func (u *folderUpload) commit(context.Context) error {
	err := errors.Join(u.file.Sync(), u.file.Close())
	u.file = nil
	if err != nil {
		return err
	}
	if err := u.folder.at.Rename(unfinished(u.name), u.name); err != nil {
		return err
	}
	u.done = true
	return u.folder.at.Sync()
}

func (u *folderUpload) abort() {
	if u.file != nil {
		u.file.Close()
	}
	if !u.done {
		u.folder.at.Remove(unfinished(u.name))
	}
}

// local is a folder of this machine.
type local struct{ root *os.Root }

func openDirectory(t Target) (store, error) {
	root, err := os.OpenRoot(t.Path)
	if err != nil {
		return nil, err
	}
	return &folder{local{root}}, nil
}

func (l local) ReadDir() (all []fs.FileInfo, err error) {
	d, err := l.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdir(-1)
}

func (l local) Open(name string) (placeFile, error) {
	// Opening a pipe would block.
	if info, err := l.root.Lstat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return l.root.Open(name)
}

func (l local) Create(name string) (placeFile, error) {
	return l.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

func (l local) Rename(from, to string) error { return l.root.Rename(from, to) }
func (l local) Remove(name string) error     { return l.root.Remove(name) }
func (l local) Sync() error                  { return atomicfile.SyncFolder(l.root.Name()) }
func (l local) Close() error                 { return l.root.Close() }
