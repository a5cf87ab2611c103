package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// changing runs a change of files that no other change of this host runs beside.
// f finds out what is there and calls save, which fails if another process
// changed it meanwhile; then f runs again, holding the directories, so that the
// other hosts wait. With hold, it holds them from the start.
func (m *files) changing(ctx context.Context, hold bool, f func(*roots.Hold) error, places ...roots.Place) error {
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
			Code: "stale", Message: p.Path + " was changed by another program meanwhile; nothing was written",
			Next: "Read it again and repeat the change.",
		}
	}
	return err
}

// seen is a regular file as a change finds it. It stays open until the change
// is made, so that no other file gets its inode meanwhile and is taken for it.
type seen struct {
	info fs.FileInfo
	f    *os.File // nil if it may be written and not read
}

func (s *seen) close() {
	if s != nil && s.f != nil {
		s.f.Close()
	}
}

// was is what there was before a change; nil for no file.
func (s *seen) was() fs.FileInfo {
	if s == nil {
		return nil
	}
	return s.info
}

// content reads the file from its beginning.
func (s *seen) content() io.Reader { return io.NewSectionReader(s.f, 0, 1<<63-1) }

// etag names the state of the file.
func (s *seen) etag(p roots.Place) (string, error) {
	if s.f == nil {
		return "", &tool.Refusal{Code: "denied", Message: "the system does not allow reading " + p.Path}
	}
	etag, err := roots.ETagOf(s.f, s.info)
	if err != nil {
		return "", p.Refuse(err)
	}
	return etag, nil
}

// lookAt opens the regular file a change is about; nil means there is none.
func lookAt(p roots.Place) (*seen, error) {
	info, err := p.Lstat()
	if isCode(err, "not_found") {
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
	case isCode(err, "not_found"):
		return nil, roots.ErrStale
	case isCode(err, "denied") && p.MayRead() == nil:
		return &seen{info: info}, nil
	case err != nil:
		return nil, err
	case !os.SameFile(info, now):
		f.Close()
		return nil, roots.ErrStale
	}
	return &seen{now, f}, nil
}

// saved is a file that was put in place.
type saved struct {
	info fs.FileInfo
	etag string // of what was written, whatever other programs did to it since
}

// save puts what a function writes where p is, if was is still there. perm is
// the mode of a new file, less the umask, or with exact as it is.
func (m *files) save(ctx context.Context, h *roots.Hold, p roots.Place, was fs.FileInfo, perm mode, data func(io.Writer) error) (s saved, err error) {
	head := keptHead{}
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

// mode is that of a new file.
type mode struct {
	perm  fs.FileMode
	exact bool // whatever the umask is
}

var plainMode = mode{perm: 0o644}

// bytesOf writes one content.
func bytesOf(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// keptHead passes on what is written and keeps as much as an etag is made of.
type keptHead struct {
	w io.Writer
	b []byte
}

func (k *keptHead) Write(b []byte) (int, error) {
	n, err := k.w.Write(b)
	if room := roots.ETagWhole + 1 - len(k.b); room > 0 {
		k.b = append(k.b, b[:min(room, n)]...)
	}
	return n, err
}

// mayWrite asks whether the file itself may be written. A rename would not
// mind, and a file somebody made read-only stays as it is.
func mayWrite(p roots.Place) error {
	f, err := p.Open(os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == "denied" {
		return &tool.Refusal{Code: "denied", Message: p.Path + " is read-only for this server"}
	}
	if err == nil {
		f.Close()
	}
	return nil // a running program cannot be opened for writing but can be replaced
}

// linked is the note on a file that was parted from its other names.
func linked(was fs.FileInfo) string {
	if was == nil || roots.Links(was) < 2 {
		return ""
	}
	return fmt.Sprintf("the file had %d names (hard links); only this one has the new content", roots.Links(was))
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
