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
	enterWait  = 30 * time.Second // for another host that applies a restore
	enterPause = 10 * time.Millisecond
)

// tryHost locks the data folder: shared for a running host, exclusive for one that
// applies a restore. It does not wait.
func (f Folders) tryHost(mode filelock.Mode) (*sqlfile.HostLock, error) {
	return sqlfile.TryHost(filepath.Join(f.Data, lockName), filepath.Join(f.Data, lockOlder), mode)
}

// holdHost locks the data folder for a running host. It waits while another host
// applies a restore, which takes as long as moving files.
func (f Folders) holdHost() (*sqlfile.HostLock, error) {
	for end := time.Now().Add(enterWait); ; time.Sleep(enterPause) {
		l, err := f.tryHost(filelock.Shared)
		if !errors.Is(err, filelock.ErrHeld) {
			return l, err
		}
		if time.Now().After(end) {
			const held = "%s has been locked for %v by a host that applies a restore; find and stop that host, " +
				"then try again"
			return nil, fmt.Errorf(held, filepath.Join(f.Data, lockName), enterWait)
		}
	}
}

// lockRestore locks the staging of restores. It returns ErrBusy while another process
// stages or cancels one.
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
