package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// farAway is the offset of the byte that is locked. On Windows other processes can neither read nor write a locked
// byte, so it must not be part of the content. Earlier versions lock the same byte.
const farAway = 1 << 30

// TryOpen locks an open file until it is closed or its process ends. It does not wait: the error is ErrHeld if
// another holder has the lock. Directories cannot be locked on this system.
func TryOpen(f *os.File, mode Mode) error {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if mode == Exclusive {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{Offset: farAway})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return ErrHeld
	}
	return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
}
