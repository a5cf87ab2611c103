package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// withLocks runs f, which changes the files at places, while no other call of
// this process changes them. f reads the present state and calls save. If
// another process changed a file in between, save returns roots.ErrStale;
// withLocks then runs f once more and holds the directories meanwhile, so that
// other hosts wait. With hold, it holds the directories from the start.
func (m *files) withLocks(ctx context.Context, hold bool, f func(*roots.Hold) error, places ...roots.Place) error {
	defer m.changes.lock(places...)()
	if !hold {
		if err := f(nil); !errors.Is(err, roots.ErrStale) {
			return err
		}
	}
	h, err := m.writer.Hold(ctx, places...)
	if err != nil {
		return err
	}
	defer h.Release()
	if err = f(h); errors.Is(err, roots.ErrStale) {
		p := places[len(places)-1]
		return &tool.Refusal{
			Code: tool.CodeStale, Message: p.Path +
				" was changed by another program during this call; nothing was written",
			Next: "Read the file again and repeat the change.",
		}
	}
	return err
}

// original is a regular file before a change. It stays open until the change is
// made, so that its inode cannot be reused by another file, which would then be
// mistaken for it.
type original struct {
	info fs.FileInfo
	f    *os.File // nil if the file may be written but not read
}

func (s *original) closeOriginal() {
	if s != nil && s.f != nil {
		s.f.Close()
	}
}

// fileInfo returns the description of the file, or nil if there is none.
func (s *original) fileInfo() fs.FileInfo {
	if s == nil {
		return nil
	}
	return s.info
}

// content returns a reader of the file from its beginning.
func (s *original) content() io.Reader { return io.NewSectionReader(s.f, 0, 1<<63-1) }

// etag returns the tag of the file's content.
func (s *original) etag(p roots.Place) (string, error) {
	if s.f == nil {
		return "", &tool.Refusal{Code: tool.CodeDenied, Message: "the system does not allow reading " + p.Path}
	}
	etag, err := roots.ETagOf(s.f, s.info)
	if err != nil {
		return "", p.Refuse(err)
	}
	return etag, nil
}

// openOriginal opens the regular file that is to be changed. It returns nil if
// there is none.
func openOriginal(p roots.Place) (*original, error) {
	info, err := p.Lstat()
	if isCode(err, tool.CodeNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := p.MustBeRegular(info); err != nil {
		return nil, err
	}
	f, now, err := p.Regular()
	switch {
	case isCode(err, tool.CodeNotFound):
		return nil, roots.ErrStale
	case isCode(err, tool.CodeDenied) && p.MayRead() == nil:
		return &original{info: info}, nil
	case err != nil:
		return nil, err
	case !os.SameFile(info, now):
		f.Close()
		return nil, roots.ErrStale
	}
	return &original{now, f}, nil
}

// saved describes a file that save has written.
type saved struct {
	info fs.FileInfo
	etag string // of what was written, even if another program changed the file since
}

// save replaces the file at p by what data writes, if it is still the file was.
// Otherwise it returns roots.ErrStale. perm is the mode of a new file.
func (m *files) save(
	ctx context.Context, h *roots.Hold, p roots.Place, was fs.FileInfo, perm mode, data func(io.Writer) error,
) (s saved, err error) {
	head := headRecorder{}
	s.info, err = m.writer.Replace(ctx, h, p, was, perm.perm, func(f *os.File) error {
		if was == nil && perm.exact {
			if err := f.Chmod(perm.perm); err != nil {
				return err
			}
		}
		head.w = f
		return data(&head)
	})
	switch {
	case errors.Is(err, roots.ErrStale):
		return s, err
	case err != nil && context.Cause(ctx) != nil:
		return s, context.Cause(ctx)
	case err != nil:
		return s, p.Refuse(err)
	}
	s.etag = roots.ETag(s.info, head.b)
	return s, nil
}

// mode is the mode of a new file.
type mode struct {
	perm  fs.FileMode
	exact bool // the umask is not applied
}

var plainMode = mode{perm: 0o644}

// writeBytes returns a function that writes b.
func writeBytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// headRecorder writes to w and keeps the first bytes, from which an etag is
// computed.
type headRecorder struct {
	w io.Writer
	b []byte
}

func (k *headRecorder) Write(b []byte) (int, error) {
	n, err := k.w.Write(b)
	if space := roots.ETagWhole + 1 - len(k.b); space > 0 {
		k.b = append(k.b, b[:min(space, n)]...)
	}
	return n, err
}

// checkWritable refuses a file that is read-only. The rename that replaces a file
// needs no permission on the file itself, but a read-only file must stay as it
// is.
func checkWritable(p roots.Place) error {
	err := p.Writable()
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == tool.CodeDenied {
		return &tool.Refusal{Code: tool.CodeDenied, Message: p.Path + " is read-only for this server"}
	}
	return nil // other errors do not prevent the replacement, such as ETXTBSY of a running program
}

// linkNote returns the note on a file that had several hard links, or "".
func linkNote(was fs.FileInfo) string {
	if was == nil || roots.Links(was) < 2 {
		return ""
	}
	return fmt.Sprintf("the file had %d hard links; only this path has the new content", roots.Links(was))
}

func makeParents(p roots.Place) error {
	dir := filepath.Dir(p.Name)
	if dir == "." {
		return nil
	}
	if err := p.Root.MkdirAll(dir, 0o755); err != nil {
		return p.Refuse(err)
	}
	return nil
}
