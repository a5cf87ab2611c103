package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type writeIn struct {
	Path    string `json:"path" names:"path"`
	Content string `json:"content"`
}

func (m *fileServer) writeFile(ctx context.Context, c *tool.Call, in writeIn) (tool.Result, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if len(in.Content) > maxBytes {
		return tool.Result{}, refusef("Content too large: %d bytes; at most %d are written", len(in.Content), maxBytes)
	}
	if p, err = p.Followed(true); err != nil {
		return tool.Result{}, nodeError(err, "open", in.Path)
	}
	err = m.withHold(ctx, p, func(h *roots.Hold) error {
		was, err := checkWritable(p)
		if err != nil {
			return err
		}
		return m.replace(ctx, h, p, was, []byte(in.Content))
	})
	if err != nil {
		return tool.Result{}, nodeError(p.Refuse(err), "open", in.Path)
	}
	return textResult("Successfully wrote to " + in.Path)
}

// checkWritable returns the file that a write will replace, or nil if there is
// none. It refuses a read-only file, which a rename would replace.
func checkWritable(p roots.Place) (fs.FileInfo, error) {
	if err := p.MayWrite(); err != nil {
		return nil, err
	}
	was, err := p.Lstat()
	if code(err) == tool.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := p.MustBeRegular(was); err != nil {
		return nil, err
	}
	if err := p.Writable(); code(err) == tool.CodeDenied {
		return nil, err
	}
	return was, nil
}

// withHold runs f, which changes a file. If another process changed the file in
// between, it runs f again and holds the directory, so that others wait.
func (m *fileServer) withHold(ctx context.Context, p roots.Place, f func(*roots.Hold) error) error {
	err := f(nil)
	if !errors.Is(err, roots.ErrStale) {
		return err
	}
	h, err := m.writer.Hold(ctx, p)
	if err != nil {
		return err
	}
	defer h.Release()
	if err = f(h); errors.Is(err, roots.ErrStale) {
		return refusef(
			"%s was changed by another program and was left as it is; read it again and repeat the change", p.Path,
		)
	}
	return err
}

// replace writes data to p. A new file gets the mode that the original gives it.
func (m *fileServer) replace(ctx context.Context, h *roots.Hold, p roots.Place, was fs.FileInfo, data []byte) error {
	_, err := m.writer.Replace(ctx, h, p, was, 0o666, func(f *os.File) error { _, err := f.Write(data); return err })
	return err
}

func createDirectory(_ context.Context, c *tool.Call, in pathIn) (tool.Result, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if p, err = p.Followed(true); err == nil {
		err = p.MayWrite()
	}
	if err != nil {
		return tool.Result{}, nodeError(err, "mkdir", in.Path)
	}
	if err := p.Root.MkdirAll(p.Name, 0o777); err != nil {
		if there, serr := p.Stat(); serr == nil && !there.IsDir() {
			return tool.Result{}, refusef("%s, mkdir '%s'", nodeErrors[tool.CodeExists], in.Path)
		}
		return tool.Result{}, nodeError(p.Refuse(err), "mkdir", in.Path)
	}
	return textResult("Successfully created directory " + in.Path)
}

type moveIn struct {
	Source      string `json:"source" names:"path"`
	Destination string `json:"destination" names:"path"`
}

func (m *fileServer) move(ctx context.Context, c *tool.Call, in moveIn) (tool.Result, error) {
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
		return tool.Result{}, refusef("Destination already exists: %s", in.Destination)
	}
	if _, err := from.Lstat(); err != nil {
		return tool.Result{}, refusef("%s, %s", nodeErrors[tool.CodeNotFound], both)
	}
	if from.Name == "." {
		return tool.Result{}, refusef("EBUSY: resource busy or locked, %s", both)
	}
	h, err := m.writer.Hold(ctx, from, to)
	if err != nil {
		return tool.Result{}, nodeError(err, "rename", in.Destination)
	}
	defer h.Release()
	info, err := from.Lstat()
	if err == nil && info.IsDir() {
		if err := from.MayMove(to); err != nil {
			return tool.Result{}, nodeError(err, "rename", in.Source)
		}
	}
	if err == nil {
		err = m.rename(ctx, h, from, to, info)
	}
	switch {
	case err == nil:
		return textResult("Successfully moved " + in.Source + " to " + in.Destination)
	case errors.Is(err, syscall.EXDEV):
		return tool.Result{}, refusef("EXDEV: cross-device link not permitted, %s", both)
	case errors.Is(err, syscall.EINVAL):
		return tool.Result{}, refusef("EINVAL: invalid argument, %s", both)
	case errors.Is(err, fs.ErrNotExist):
		return tool.Result{}, refusef("%s, %s", nodeErrors[tool.CodeNotFound], both)
	case errors.Is(err, fs.ErrExist):
		return tool.Result{}, refusef("Destination already exists: %s", in.Destination)
	}
	return tool.Result{}, nodeError(to.Refuse(err), "rename", in.Destination)
}

func placeToMove(c *tool.Call, path string) (roots.Place, error) {
	p, err := findPlace(c, path)
	if err != nil {
		return p, err
	}
	q, err := p.Followed(false)
	if err == nil {
		err = q.MayWrite()
	}
	if err != nil {
		return p, nodeError(err, "rename", path)
	}
	return q, nil
}

// rename never replaces anything: a file gets a second name and then loses the
// first, and the system refuses to rename a directory onto an existing file.
func (m *fileServer) rename(ctx context.Context, h *roots.Hold, from, to roots.Place, info fs.FileInfo) error {
	if !from.InFolderOf(to) {
		if !info.Mode().IsRegular() {
			return syscall.EXDEV
		}
		return m.copyAndRemove(ctx, h, from, to, info)
	}
	if !info.IsDir() {
		err := roots.Link(from, to)
		if err == nil {
			return from.Remove()
		}
		if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return roots.Rename(from, to)
}

// copyAndRemove moves a file to another root by copying it.
func (m *fileServer) copyAndRemove(ctx context.Context, h *roots.Hold, from, to roots.Place, info fs.FileInfo) error {
	src, _, err := from.Regular()
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = m.writer.Replace(ctx, h, to, nil, 0o600, func(f *os.File) error {
		if err := f.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
		_, err := io.Copy(f, src)
		return err
	})
	if err != nil {
		return err
	}
	return from.Remove()
}
