package roots

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gatehouse/internal/files/filelock"
	"gatehouse/tool"
)

// holdMost is how long a change waits for another process. A lock is held for
// microseconds as a rule.
const holdMost = 30 * time.Second

// A Hold keeps the other writers of this host, and those of other hosts, from
// changing what names in some directories stand for. It is an advisory lock of
// each directory, so it lies on what is changed, wherever the hosts run, and
// leaves no file behind. Programs that do not ask for it are not stopped.
//
// The nil Hold holds nothing.
type Hold struct {
	locked []*os.File
}

// Hold waits until no other writer holds a directory of the places, whose names
// must have been followed. A directory that does not exist is passed over, as
// are those of file systems that know no locks. The caller releases it.
func (w *Writer) Hold(ctx context.Context, places ...Place) (*Hold, error) {
	var dirs []*os.Root
	defer func() {
		for _, d := range dirs {
			d.Close()
		}
	}()
	for _, p := range places {
		if d, err := p.Root.OpenRoot(filepath.Dir(p.Name)); err == nil { // else what is done there next says why not
			dirs = append(dirs, d)
		}
	}
	return w.holdOpen(ctx, dirs...)
}

// holdOpen is Hold of directories that are open.
func (w *Writer) holdOpen(ctx context.Context, open ...*os.Root) (*Hold, error) {
	var dirs []lockable
	for _, d := range open {
		if f, err := d.Open("."); err == nil {
			dirs = append(dirs, lockable{f, idOf(f)})
		}
	}
	// Every host takes two directories in the same order, and one only once.
	slices.SortFunc(dirs, func(a, b lockable) int { return cmp.Compare(a.id, b.id) })
	h := &Hold{}
	for i, d := range dirs {
		if i > 0 && d.id != "" && d.id == dirs[i-1].id {
			d.f.Close()
			continue
		}
		if err := lock(ctx, d.f); err != nil {
			for _, rest := range dirs[i:] {
				rest.f.Close()
			}
			h.Release()
			return nil, err
		}
		h.locked = append(h.locked, d.f)
	}
	return h, nil
}

type lockable struct {
	f  *os.File
	id string
}

func idOf(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	return FileID(info)
}

var errHeldLong = &tool.Refusal{
	Code: tool.CodeBusy, Message: "another program holds the lock of this directory",
	Next: "Repeat the call in a moment, or find the program that locks the directory.",
}

// lock locks an open directory as soon as no other writer has it. File systems
// that have no locks let everything happen.
func lock(ctx context.Context, dir *os.File) error {
	if !errors.Is(filelock.TryOpen(dir, filelock.Exclusive), filelock.ErrHeld) {
		return nil
	}
	late, cancel := context.WithTimeoutCause(ctx, holdMost, errHeldLong)
	defer cancel()
	if err := filelock.WaitOpen(late, dir, filelock.Exclusive); err != nil && late.Err() != nil {
		return err
	}
	return nil
}

// Release lets the others go on.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	for _, f := range h.locked {
		f.Close() // a child that is just being started has it too, until it runs its program
	}
	h.locked = nil
}
