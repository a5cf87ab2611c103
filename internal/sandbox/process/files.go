package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gatehouse/internal/sandbox"
)

const mostEntries = 1000

// Files are accessed inside the sandbox's own folder only, through its os.Root, although its programs can
// access everything: a caller that asks for a file of a sandbox does not expect one of the host.

// resolveName returns a path relative to the root.
func (b *instance) resolveName(op, p string) (string, error) {
	no := func(err error) (string, error) { return "", &fs.PathError{Op: op, Path: p, Err: err} }
	if b.life.Err() != nil {
		return no(sandbox.ErrClosed)
	}
	if p == "" || strings.ContainsRune(p, 0) {
		return no(fs.ErrInvalid)
	}
	if filepath.IsAbs(p) {
		rel, err := filepath.Rel(b.home, p)
		if err != nil || !filepath.IsLocal(rel) {
			return no(fs.ErrPermission)
		}
		return rel, nil
	}
	return p, nil
}

// ReadFile implements sandbox.Files.
func (b *instance) ReadFile(ctx context.Context, p string, offset, length int64, w io.Writer) (sandbox.Info, error) {
	name, err := b.resolveName("open", p)
	if err != nil {
		return sandbox.Info{}, err
	}
	f, err := b.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return sandbox.Info{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sandbox.Info{}, err
	}
	if !info.Mode().IsRegular() {
		return sandbox.Info{}, &fs.PathError{Op: "read", Path: p, Err: errors.New("not a regular file")}
	}
	if length <= 0 {
		length = max(info.Size()-offset, 0)
	}
	_, err = io.Copy(w, io.NewSectionReader(f, offset, length))
	return describe(info, ""), errors.Join(err, ctx.Err())
}

func describe(i fs.FileInfo, link string) sandbox.Info {
	return sandbox.Info{Name: i.Name(), Size: i.Size(), Mode: i.Mode(), Modified: i.ModTime(), Link: link}
}

// WriteFile implements sandbox.Files.
func (b *instance) WriteFile(ctx context.Context, p string, r io.Reader,
	how sandbox.WriteOptions) (sandbox.Info, error) {
	name, err := b.resolveName("open", p)
	if err != nil {
		return sandbox.Info{}, err
	}
	if how.Mode == 0 {
		how.Mode = 0o644
	}
	if dir := filepath.Dir(name); how.Parents && dir != "." {
		if err := b.root.MkdirAll(dir, 0o755); err != nil {
			return sandbox.Info{}, err
		}
	}
	r = boundedReader{ctx, b.life, r}
	if how.Append {
		err = b.appendTo(name, r, how.Mode)
	} else {
		err = b.replace(name, r, how.Mode)
	}
	if err != nil {
		return sandbox.Info{}, err
	}
	info, err := b.root.Stat(name)
	if err != nil {
		return sandbox.Info{}, err
	}
	return describe(info, ""), ctx.Err()
}

// boundedReader reads as long as neither the call nor the sandbox has ended.
type boundedReader struct {
	// call and life are fields because io.Reader has no parameter for them.
	call, life context.Context
	r          io.Reader
}

func (w boundedReader) Read(b []byte) (int, error) {
	if w.life.Err() != nil {
		return 0, sandbox.ErrClosed
	}
	if w.call.Err() != nil {
		return 0, context.Cause(w.call)
	}
	return w.r.Read(b)
}

func (b *instance) appendTo(name string, r io.Reader, mode fs.FileMode) error {
	f, err := b.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, f.Close(),
			&fs.PathError{Op: "write", Path: name, Err: errors.New("not a regular file")})
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// replace writes a temporary file and renames it.
func (b *instance) replace(name string, r io.Reader, mode fs.FileMode) error {
	if info, err := b.root.Stat(name); err == nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: name, Err: errors.New("not a regular file")}
	}
	beside := filepath.Join(filepath.Dir(name), ".writing-"+rand.Text())
	f, err := b.root.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err == nil {
		err = b.root.Chmod(beside, mode)
	}
	if err == nil {
		err = b.root.Rename(beside, name)
	}
	if err != nil {
		return errors.Join(err, b.root.Remove(beside))
	}
	return nil
}

// List implements sandbox.Files.
func (b *instance) List(ctx context.Context, p, after string,
	limit int) (entries []sandbox.Info, more bool, err error) {
	name, err := b.resolveName("open", p)
	if err != nil {
		return nil, false, err
	}
	f, err := b.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, false, err
	}
	slices.Sort(names)
	if limit <= 0 || limit > mostEntries {
		limit = mostEntries
	}
	for _, n := range names {
		if n <= after {
			continue
		}
		if len(entries) == limit {
			return entries, true, ctx.Err()
		}
		info, err := b.stat(filepath.Join(name, n))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, info)
	}
	return entries, false, ctx.Err()
}

// Stat implements sandbox.Files.
func (b *instance) Stat(ctx context.Context, p string) (sandbox.Info, error) {
	name, err := b.resolveName("stat", p)
	if err != nil {
		return sandbox.Info{}, err
	}
	return b.stat(name)
}

func (b *instance) stat(name string) (sandbox.Info, error) {
	info, err := b.root.Lstat(name)
	if err != nil {
		return sandbox.Info{}, err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = b.root.Readlink(name); err != nil {
			return sandbox.Info{}, err
		}
	}
	return describe(info, link), nil
}

// Mkdir implements sandbox.Files.
func (b *instance) Mkdir(ctx context.Context, p string) error {
	name, err := b.resolveName("mkdir", p)
	if err != nil {
		return err
	}
	return b.root.MkdirAll(name, 0o755)
}

// Remove implements sandbox.Files. It never removes the sandbox's own folder.
func (b *instance) Remove(ctx context.Context, p string, all bool) error {
	name, err := b.resolveName("remove", p)
	if err != nil {
		return err
	}
	if path.Clean(filepath.ToSlash(name)) == "." {
		return &fs.PathError{
			Op:   "remove",
			Path: p,
			Err:  fmt.Errorf("the folder of the sandbox itself cannot be removed: %w", fs.ErrInvalid),
		}
	}
	if !all {
		return b.root.Remove(name)
	}
	if _, err := b.root.Lstat(name); err != nil {
		return err
	}
	return b.root.RemoveAll(name)
}

// Rename implements sandbox.Files.
func (b *instance) Rename(ctx context.Context, from, to string) error {
	old, err := b.resolveName("rename", from)
	if err != nil {
		return err
	}
	name, err := b.resolveName("rename", to)
	if err != nil {
		return err
	}
	return b.root.Rename(old, name)
}
