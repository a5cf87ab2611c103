package daemon

import (
	"os"

	"golang.org/x/sys/windows"
)

// farAway is where the lock lies: on Windows nobody can read what is locked,
// and the number at the beginning is for everybody.
const farAway = 1 << 30

// lock takes a file for this process, or fails at once.
func lock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		&windows.Overlapped{Offset: farAway})
}
