// Package filelock locks files between processes, and between the users of one
// process. The kernel keeps the locks, so that one ends with its process,
// however that ends, and no lock is ever judged stale by its age. A lock is
// advisory: it stops only those that ask for it.
package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/gofrs/flock"
)

// ErrHeld means that another holder has the lock.
var ErrHeld = errors.New("another process holds the lock")

// Mode says with whom a lock may be shared.
type Mode bool

const (
	Exclusive Mode = false // with no other holder
	Shared    Mode = true  // with other shared holders
)

const (
	pauseFirst = time.Millisecond // between two attempts; it doubles
	pauseMost  = 8 * time.Millisecond
)

// A Lock is held until it is released or its process ends.
type Lock struct{ file *flock.Flock }

// Try locks the file at path, which it makes, with mode 0600, if there is none.
// It does not wait: the error is ErrHeld if another holder is in the way.
func Try(path string, mode Mode) (*Lock, error) {
	for {
		l := &Lock{flock.New(path, flock.SetPermissions(0o600))}
		try := l.file.TryLock
		if mode == Shared {
			try = l.file.TryRLock
		}
		switch ok, err := try(); {
		case err != nil:
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		case !ok:
			return nil, ErrHeld
		}
		if l.current() {
			return l, nil
		}
		// A holder removed the file between our opening and our locking it. The
		// lock that counts is on the file that has the name now.
		if err := l.Release(); err != nil {
			return nil, err
		}
	}
}

// Wait is Try that waits for other holders until ctx is done; the error is then
// the cause of that. Waiters have no order.
func Wait(ctx context.Context, path string, mode Mode) (l *Lock, err error) {
	err = poll(ctx, func() error {
		l, err = Try(path, mode)
		return err
	})
	return l, err
}

// WaitOpen is TryOpen that waits as Wait does.
func WaitOpen(ctx context.Context, f *os.File, mode Mode) error {
	return poll(ctx, func() error { return TryOpen(f, mode) })
}

func poll(ctx context.Context, try func() error) error {
	for pause := pauseFirst; ; pause = min(2*pause, pauseMost) {
		if err := try(); !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// current reports whether the locked file is still the one at its path.
func (l *Lock) current() bool {
	locked, err := l.file.Stat()
	named, nerr := os.Stat(l.file.Path())
	return err == nil && nerr == nil && os.SameFile(locked, named)
}

// Release ends the lock and leaves its file.
func (l *Lock) Release() error { return l.file.Unlock() }

// Remove removes the file of an exclusive lock and ends the lock. Waiters then
// lock a new file.
func (l *Lock) Remove() error {
	err := os.Remove(l.file.Path())
	uerr := l.file.Unlock()
	if runtime.GOOS == "windows" {
		// No open file can be removed there, so it is removed now, unless a waiter
		// has it open: then it is the waiter's to remove.
		os.Remove(l.file.Path())
		return uerr
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, uerr)
}
