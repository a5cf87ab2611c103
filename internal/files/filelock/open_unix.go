//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// TryOpen locks an open file, or an open directory, until it is closed or its
// process ends. It serves where there is no path to give to Try: below an
// os.Root, and where the locked file itself is read and written. A child that is
// being started keeps a lock that ends meanwhile until it runs its program.
//
// It does not wait: the error is ErrHeld if another holder is in the way. Any
// other error means that this cannot be locked, as on some file systems.
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
