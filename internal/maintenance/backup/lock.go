package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/sqlfile"
)

const (
	enterWait  = 30 * time.Second // for another host that puts a restore in place
	enterPause = 10 * time.Millisecond
)

// tryHost locks the data folder for a host that runs, or, exclusively, for one
// that puts a restore in place. It does not wait.
func (f Folders) tryHost(mode filelock.Mode) (*sqlfile.HostLock, error) {
	return sqlfile.TryHost(filepath.Join(f.Data, lockName), filepath.Join(f.Data, lockOlder), mode)
}

// holdHost locks the data folder for a host that runs. A host that puts a
// restore in place holds it alone for as long as moving files takes, which is
// waited for.
func (f Folders) holdHost() (*sqlfile.HostLock, error) {
	for end := time.Now().Add(enterWait); ; time.Sleep(enterPause) {
		l, err := f.tryHost(filelock.Shared)
		if !errors.Is(err, filelock.ErrHeld) {
			return l, err
		}
		if time.Now().After(end) {
			const held = "%s has been held for %v by a host that puts a restore in place; find and end it, then try again"
			return nil, fmt.Errorf(held, filepath.Join(f.Data, lockName), enterWait)
		}
	}
}

// lockRestore lets one process at a time stage or cancel a restore; the error is
// ErrBusy while another does.
func (f Folders) lockRestore() (*sqlfile.HostLock, error) {
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return nil, err
	}
	path, older := filepath.Join(f.Data, ".restoring.lock"), filepath.Join(f.Data, ".restore.lock")
	l, err := sqlfile.TryHost(path, older, filelock.Exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		return nil, ErrBusy
	}
	return l, err
}
