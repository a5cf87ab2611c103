package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

// save is replace with errors for the model.
func (m *files) save(p roots.Place, was fs.FileInfo, data []byte) (fs.FileInfo, error) {
	return m.saveBy(p, was, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// saveBy is save of what a function writes.
func (m *files) saveBy(p roots.Place, was fs.FileInfo, data func(io.Writer) error) (fs.FileInfo, error) {
	now, err := m.writer.Replace(p, was, 0o644, func(f *os.File) error { return data(f) })
	if errors.Is(err, roots.ErrStale) {
		return nil, &tool.Refusal{Code: "stale", Message: p.Path + " was changed by somebody else meanwhile; nothing was written", Next: "Read it again and repeat the change."}
	}
	if err != nil {
		return nil, p.Refuse(err)
	}
	return now, nil
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
