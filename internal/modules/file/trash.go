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
	trashEntries = 100_000 // in one directory that is kept; more are deleted for good
	trashBytes   = 1 << 30
	trashAge     = 24 * time.Hour // what a server that was killed left there may be this old
)

// trash keeps deleted directories, and what large files were, for undo. It is a folder of its own outside
// of all roots, so that nothing strange appears in a workspace, and takes only
// what lies on the same file system. What it holds lives no longer than the
// server. Safe for concurrent use.
type trash struct {
	dir string // "" means that there is none

	mu    sync.Mutex
	own   string   // our folder in it, made when it is first needed
	root  *os.Root // the same, open
	claim *os.File // the same, claimed until it is closed
}

// open makes the folder of this server and clears away what dead ones left.
func (t *trash) open() (*os.Root, error) {
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
	t.clear()
	own := filepath.Join(t.dir, rand.Text())
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(own)
	if err != nil {
		return nil, err
	}
	if t.claim, err = root.Open("."); err == nil {
		filelock.TryOpen(t.claim, filelock.Exclusive) // where that cannot be, no host clears any
	}
	t.own, t.root = own, root
	return root, nil
}

// clear removes the folders of hosts that have ended. A host claims its folder
// for as long as it lives. Age is asked too, because a folder is claimed a moment
// after it was made, and hosts of earlier versions claim none.
func (t *trash) clear() {
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

// take moves a directory into the trash.
func (t *trash) take(p roots.Place) (id string, err error) {
	root, err := t.open()
	if err != nil {
		return "", err
	}
	id = rand.Text()
	err = t.between(p, root, func(there, here string) error { return os.Rename(there, filepath.Join(here, id)) })
	return id, err
}

// giveBack moves it to where it was, where nothing may be.
func (t *trash) giveBack(p roots.Place, id string) error {
	root, err := t.open()
	if err != nil {
		return err
	}
	if err := t.between(p, root, func(there, here string) error { return os.Rename(filepath.Join(here, id), there) }); err != nil {
		return p.Refuse(err)
	}
	return nil
}

// store keeps the content of a file that is about to be replaced: by a second
// name where the file system has them, else by a copy.
func (t *trash) store(p roots.Place, there *seen) (id string, err error) {
	if there.info.Size() > trashBytes {
		return "", errTooLarge
	}
	root, err := t.open()
	if err != nil {
		return "", err
	}
	id = rand.Text()
	err = t.between(p, root, func(there, here string) error { return os.Link(there, filepath.Join(here, id)) })
	if err == nil {
		if info, err := root.Lstat(id); err == nil && os.SameFile(info, there.info) {
			return id, nil
		}
		root.Remove(id) // another file had the name by then
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

// reopen opens a content that was stored.
func (t *trash) reopen(id string) (*os.File, error) {
	root, err := t.open()
	if err != nil {
		return nil, err
	}
	return root.Open(id)
}

// between names both ends of a move by open directories, as the kernel shows
// them to their own process: no name on the way to either is looked up again.
func (t *trash) between(p roots.Place, root *os.Root, f func(there, here string) error) error {
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

// drop deletes what need not be kept any longer.
func (t *trash) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root != nil && id != "" {
		t.root.RemoveAll(id)
	}
}

// close deletes all that is in the trash.
func (t *trash) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.root == nil {
		return nil
	}
	err := errors.Join(t.root.Close(), os.RemoveAll(t.own))
	t.root = nil
	if t.claim != nil {
		t.claim.Close()
	}
	return err
}

// weigh looks through a directory that is to be deleted: whether it is small
// enough to be kept. It refuses what must not be deleted.
func weigh(ctx context.Context, p roots.Place) (small bool, size int64, err error) {
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
			return nil // what cannot be looked at decides when it is deleted
		}
		if p.Locked(name) {
			return &tool.Refusal{
				Code:    "denied",
				Message: fmt.Sprintf("%s holds %s, which is protected by its name; nothing was deleted", p.Path, name),
				Next:    "Delete the other things in it one by one, or ask the person to do it.",
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
