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

// holdMost is how long a change waits for another process. A lock is normally held for microseconds.
const holdMost = 30 * time.Second

// A Hold prevents other writers of this host and of other hosts from changing the entries of some directories. It
// is an advisory lock on each directory, so it works wherever the hosts run and leaves no file behind. It does not
// stop programs that do not use it.
//
// A nil Hold holds nothing.
type Hold struct {
	locked []*os.File
}

// Hold waits until no other writer holds the directories of the places, whose names must have been followed. It
// skips directories that do not exist or that are on file systems without locks. The caller must release it.
func (w *Writer) Hold(ctx context.Context, places ...Place) (*Hold, error) {
	var dirs []*os.Root
	defer func() {
		for _, d := range dirs {
			d.Close()
		}
	}()
	for _, p := range places {
		// otherwise the operation that follows reports the error
		root := p.Root
		if p.layer != nil {
			root = p.layer.Upper()
		}
		if d, err := root.OpenRoot(filepath.Dir(p.Name)); err == nil {
			dirs = append(dirs, d)
		}
	}
	return w.holdOpen(ctx, dirs...)
}

// holdOpen is Hold for open directories.
func (w *Writer) holdOpen(ctx context.Context, open ...*os.Root) (*Hold, error) {
	var dirs []lockable
	for _, d := range open {
		if f, err := d.Open("."); err == nil {
			dirs = append(dirs, lockable{f, idOf(f)})
		}
	}
	// Every host locks two directories in the same order, and each only once, so that no two hosts wait for each
	// other.
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

// lock locks an open directory when no other writer has it. On file systems without locks it does nothing.
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

// Release releases the locks.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	for _, f := range h.locked {
		f.Close() // a child process that is being started has the file open too, until it runs its program
	}
	h.locked = nil
}
