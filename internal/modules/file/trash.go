package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	trashEntries = 100_000 // in one directory; a larger one is deleted permanently
	trashBytes   = 1 << 30
	trashAge     = 24 * time.Hour // minimum age of a stale folder that is removed
)

// trash keeps deleted directories, and the previous contents of large files, for
// undo. It is a folder outside of all roots, so that no foreign file appears in
// a workspace. It takes directories of the same file system only, and is emptied
// when the server ends. It is safe for concurrent use.
type trash struct {
	dir string // "" means that there is no trash

	mu   sync.Mutex
	own  string   // this server's folder in dir, made when it is first needed
	root *os.Root // own, open
	lock *os.File // own, with a file lock held until it is closed
}

// openFolder returns the folder of this server. The first call makes the folder and
// removes those of servers that have ended.
func (t *trash) openFolder() (*os.Root, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root != nil {
		return t.root, nil
	}
	if t.dir == "" || runtime.GOOS != "linux" {
		return nil, errors.ErrUnsupported
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, err
	}
	t.removeStale()
	own := filepath.Join(t.dir, rand.Text())
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(own)
	if err != nil {
		return nil, err
	}
	if t.lock, err = root.Open("."); err == nil {
		filelock.TryOpen(t.lock, filelock.Exclusive) // without file locks no server removes the folders of others
	}
	t.own, t.root = own, root
	return root, nil
}

// removeStale removes the folders of servers that have ended. A server holds a
// lock on its folder while it runs. A folder must also be older than trashAge,
// because it is locked a moment after it was made, and earlier versions do not
// lock theirs.
func (t *trash) removeStale() {
	entries, _ := os.ReadDir(t.dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() || len(e.Name()) != len(rand.Text()) || time.Since(info.ModTime()) <= trashAge {
			continue
		}
		dir := filepath.Join(t.dir, e.Name())
		if f, err := os.Open(dir); err == nil {
			if filelock.TryOpen(f, filelock.Exclusive) == nil {
				os.RemoveAll(dir)
			}
			f.Close()
		}
	}
}

// moveIn moves a directory into the trash and returns its id.
func (t *trash) moveIn(p roots.Place) (id string, err error) {
	root, err := t.openFolder()
	if err != nil {
		return "", err
	}
	id = rand.Text()
	err = t.withPaths(p, root, func(there, here string) error { return os.Rename(there, filepath.Join(here, id)) })
	return id, err
}

// moveBack moves a directory from the trash to p, which must not exist.
func (t *trash) moveBack(p roots.Place, id string) error {
	root, err := t.openFolder()
	if err != nil {
		return err
	}
	if err := t.withPaths(p, root,
		func(there, here string) error { return os.Rename(filepath.Join(here, id), there) }); err != nil {
		return p.Refuse(err)
	}
	return nil
}

// store keeps the content of a file that is about to be replaced: by a hard link
// if the file system has them, and otherwise by a copy.
func (t *trash) store(p roots.Place, there *original) (id string, err error) {
	if there.info.Size() > trashBytes {
		return "", errTooLarge
	}
	root, err := t.openFolder()
	if err != nil {
		return "", err
	}
	id = rand.Text()
	err = t.withPaths(p, root, func(there, here string) error { return os.Link(there, filepath.Join(here, id)) })
	if err == nil {
		if info, err := root.Lstat(id); err == nil && os.SameFile(info, there.info) {
			return id, nil
		}
		root.Remove(id) // another file had got the name
	}
	f, err := root.OpenFile(id, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	n, err := io.Copy(f, io.LimitReader(there.content(), trashBytes+1))
	if err = errors.Join(err, f.Close()); err == nil && n > trashBytes {
		err = errTooLarge
	}
	if err != nil {
		root.Remove(id)
		return "", err
	}
	return id, nil
}

// reopen opens a stored content.
func (t *trash) reopen(id string) (*os.File, error) {
	root, err := t.openFolder()
	if err != nil {
		return nil, err
	}
	return root.Open(id)
}

// withPaths calls f with the paths of p and of the trash folder below
// /proc/self/fd. These begin at open directories, so that no name on the way is
// looked up again and could lead elsewhere.
func (t *trash) withPaths(p roots.Place, root *os.Root, f func(there, here string) error) error {
	parent, base, err := p.Parent()
	if err != nil {
		return err
	}
	defer parent.Close()
	there, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := root.Open(".")
	if err != nil {
		return err
	}
	defer here.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", there.Fd(), base), fmt.Sprintf("/proc/self/fd/%d", here.Fd()))
}

// removeItem deletes the directory or content with an id.
func (t *trash) removeItem(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root != nil && id != "" {
		t.root.RemoveAll(id)
	}
}

// closeFolder deletes this server's folder of the trash.
func (t *trash) closeFolder() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root == nil {
		return nil
	}
	err := errors.Join(t.root.Close(), os.RemoveAll(t.own))
	t.root = nil
	if t.lock != nil {
		t.lock.Close()
	}
	return err
}

// measure walks a directory that is to be deleted and reports whether it is small
// enough for the trash. It refuses a directory with a protected file.
func measure(ctx context.Context, p roots.Place) (small bool, size int64, err error) {
	dir, err := p.Dir()
	if err != nil {
		return false, 0, err
	}
	defer dir.Close()
	entries, bytes := 0, int64(0)
	err = fs.WalkDir(dir.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if cerr := context.Cause(ctx); cerr != nil {
			return cerr
		}
		if err != nil {
			return nil // what cannot be read fails when it is deleted
		}
		if p.Locked(name) {
			return &tool.Refusal{
				Code:    tool.CodeDenied,
				Message: fmt.Sprintf("%s contains %s, whose name is protected; nothing was deleted", p.Path, name),
				Next:    "Delete the other files in it one by one, or ask the user to delete it.",
			}
		}
		entries++
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return entries <= trashEntries && bytes <= trashBytes, bytes, err
}
