//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// TryOpen locks an open file or directory until it is closed or its process ends. Use it if there is no path for
// Try: below an os.Root, or if the locked file itself is read and written. A child process that is being started
// keeps a lock that was released meanwhile until it runs its program.
//
// It does not wait: the error is ErrHeld if another holder has the lock. Any other error means that the file cannot
// be locked, as on some file systems.
func TryOpen(f *os.File, mode Mode) error {
	how := syscall.LOCK_EX
	if mode == Shared {
		how = syscall.LOCK_SH
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		for {
			if err = syscall.Flock(int(fd), how|syscall.LOCK_NB); err != syscall.EINTR {
				return
			}
		}
	})
	switch {
	case cerr != nil:
		return cerr
	case err == nil:
		return nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return ErrHeld
	}
	return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
}
