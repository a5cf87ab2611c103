// Package filelock locks files between processes, and between the goroutines of one process. The kernel holds the
// locks, so a lock ends with its process, and no lock is judged stale by its age. Locks are advisory: they stop
// only programs that use them.
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

// Mode determines whether several holders can share a lock.
type Mode bool

const (
	Exclusive Mode = false // with no other holder
	Shared    Mode = true  // with other shared holders
)

const (
	pauseFirst = time.Millisecond // between two attempts; doubles after each
	pauseMost  = 8 * time.Millisecond
)

// A Lock is held until it is released or its process ends.
type Lock struct{ file *flock.Flock }

// Try locks the file at path. It creates the file with mode 0600 if it does not exist. It does not wait: the error
// is ErrHeld if another holder has the lock.
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
		// A holder removed the file after it was opened here and before it was locked. The lock that counts is that
		// of the file that has the name now.
		if err := l.Release(); err != nil {
			return nil, err
		}
	}
}

// Wait is Try, but waits for other holders until ctx is done, and then returns the cause of ctx. Waiters are not
// served in order.
func Wait(ctx context.Context, path string, mode Mode) (l *Lock, err error) {
	err = poll(ctx, func() error {
		l, err = Try(path, mode)
		return err
	})
	return l, err
}

// WaitOpen is TryOpen, but waits as Wait does.
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

// Remove removes the file of an exclusive lock and ends the lock. Waiters then lock a new file.
func (l *Lock) Remove() error {
	err := os.Remove(l.file.Path())
	uerr := l.file.Unlock()
	if runtime.GOOS == "windows" {
		// An open file cannot be removed on this system, so it is removed after it was closed. If a waiter has it
		// open, the waiter removes it.
		os.Remove(l.file.Path())
		return uerr
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, uerr)
}
