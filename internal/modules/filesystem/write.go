package filesystem

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type writeIn struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func write(_ context.Context, c *tool.Call, in writeIn) (tool.Result, error) {
	p, err := find(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if len(in.Content) > most {
		return tool.Result{}, say("Content too large: %d bytes; at most %d are written", len(in.Content), most)
	}
	if p, err = p.Followed(true); err != nil {
		return tool.Result{}, told(err, "open", in.Path)
	}
	was, err := writable(p)
	if err != nil {
		return tool.Result{}, told(err, "open", in.Path)
	}
	if err := replace(p, was, []byte(in.Content)); err != nil {
		return tool.Result{}, told(p.Refuse(err), "open", in.Path)
	}
	return text("Successfully wrote to " + in.Path)
}

// writable looks at the file a write will replace; nil means there is none. A
// file that somebody made read-only stays as it is.
func writable(p roots.Place) (fs.FileInfo, error) {
	if err := p.MayWrite(); err != nil {
		return nil, err
	}
	was, err := p.Lstat()
	if code(err) == "not_found" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := p.MustBeRegular(was); err != nil {
		return nil, err
	}
	f, err := p.Open(os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if code(err) == "denied" {
		return nil, err
	}
	if err == nil {
		f.Close()
	}
	return was, nil
}

var errStale = errors.New("it was changed by somebody else meanwhile")

// replace puts data where p is, all of it or nothing. was is the file as it was
// seen, nil for none; its mode stays. What is there by now must be that file.
func replace(p roots.Place, was fs.FileInfo, data []byte) (err error) {
	dir, base := filepath.Split(p.Name)
	parent, err := p.Root.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	temp, err := fill(parent, was, func(f *os.File) error { _, err := f.Write(data); return err })
	if err != nil {
		return err
	}
	defer parent.Remove(temp) // it is gone where all went well
	now, err := parent.Lstat(base)
	switch {
	case was == nil && err == nil, was != nil && (err != nil || !os.SameFile(was, now) || now.Size() != was.Size() || !now.ModTime().Equal(was.ModTime())):
		return errStale
	case was == nil:
		err = parent.Link(temp, base) // which never replaces
		if err == nil || errors.Is(err, fs.ErrExist) {
			break
		}
		err = parent.Rename(temp, base)
	default:
		err = parent.Rename(temp, base)
	}
	if d, oerr := parent.Open("."); oerr == nil {
		d.Sync() // so that it lasts through a power cut, where the system can
		d.Close()
	}
	return err
}

// fill makes a temporary file, whole and on disk, under a name nobody can
// guess, and with the mode of the file it will replace.
func fill(dir *os.Root, was fs.FileInfo, put func(*os.File) error) (name string, err error) {
	name = ".gatehouse-" + rand.Text() + ".tmp"
	mode := fs.FileMode(0o666) // less the umask, as the original
	if was != nil {
		mode = 0o600 // until it has its own
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			dir.Remove(name)
		}
	}()
	if was != nil {
		if err := f.Chmod(was.Mode().Perm()); err != nil {
			return "", err
		}
	}
	if err := put(f); err != nil {
		return "", err
	}
	return name, f.Sync()
}

func createDirectory(_ context.Context, c *tool.Call, in pathIn) (tool.Result, error) {
	p, err := find(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if p, err = p.Followed(true); err == nil {
		err = p.MayWrite()
	}
	if err != nil {
		return tool.Result{}, told(err, "mkdir", in.Path)
	}
	if err := p.Root.MkdirAll(p.Name, 0o777); err != nil {
		if there, serr := p.Stat(); serr == nil && !there.IsDir() {
			return tool.Result{}, say("%s, mkdir '%s'", words["exists"], in.Path)
		}
		return tool.Result{}, told(p.Refuse(err), "mkdir", in.Path)
	}
	return text("Successfully created directory " + in.Path)
}

type moveIn struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func move(_ context.Context, c *tool.Call, in moveIn) (tool.Result, error) {
	from, err := placeToMove(c, in.Source)
	if err != nil {
		return tool.Result{}, err
	}
	to, err := placeToMove(c, in.Destination)
	if err != nil {
		return tool.Result{}, err
	}
	both := "rename '" + in.Source + "' -> '" + in.Destination + "'"
	if _, err := to.Lstat(); err == nil {
		return tool.Result{}, say("Destination already exists: %s", in.Destination)
	}
	info, err := from.Lstat()
	if err != nil {
		return tool.Result{}, say("%s, %s", words["not_found"], both)
	}
	if from.Name == "." {
		return tool.Result{}, say("EBUSY: resource busy or locked, %s", both)
	}
	err = rename(from, to, info)
	switch {
	case err == nil:
		return text("Successfully moved " + in.Source + " to " + in.Destination)
	case errors.Is(err, syscall.EXDEV):
		return tool.Result{}, say("EXDEV: cross-device link not permitted, %s", both)
	case errors.Is(err, syscall.EINVAL):
		return tool.Result{}, say("EINVAL: invalid argument, %s", both)
	case errors.Is(err, fs.ErrNotExist):
		return tool.Result{}, say("%s, %s", words["not_found"], both)
	case errors.Is(err, fs.ErrExist):
		return tool.Result{}, say("Destination already exists: %s", in.Destination)
	}
	return tool.Result{}, told(to.Refuse(err), "rename", in.Destination)
}

func placeToMove(c *tool.Call, path string) (roots.Place, error) {
	p, err := find(c, path)
	if err != nil {
		return p, err
	}
	q, err := p.Followed(false)
	if err == nil {
		err = q.MayWrite()
	}
	if err != nil {
		return p, told(err, "rename", path)
	}
	return q, nil
}

// rename never replaces anything: a file gets a second name and loses the
// first, and the system refuses to rename a directory onto what exists.
func rename(from, to roots.Place, info fs.FileInfo) error {
	if from.Root != to.Root {
		if !info.Mode().IsRegular() {
			return syscall.EXDEV
		}
		return carry(from, to, info)
	}
	if !info.IsDir() {
		err := from.Root.Link(from.Name, to.Name)
		if err == nil {
			return from.Root.Remove(from.Name)
		}
		if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return from.Root.Rename(from.Name, to.Name)
}

// carry moves a file from one folder to another by copying it.
func carry(from, to roots.Place, info fs.FileInfo) error {
	dir, base := filepath.Split(to.Name)
	parent, err := to.Root.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	src, _, err := from.Regular()
	if err != nil {
		return err
	}
	defer src.Close()
	temp, err := fill(parent, info, func(f *os.File) error { _, err := io.Copy(f, src); return err })
	if err != nil {
		return err
	}
	defer parent.Remove(temp)
	if err := parent.Link(temp, base); err != nil {
		return err
	}
	return from.Root.Remove(from.Name)
}
