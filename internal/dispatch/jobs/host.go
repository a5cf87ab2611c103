package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/sqlfile"
)

// A host that runs jobs holds a lock on a file beside the jobs for as long as it runs, so that the other hosts on
// the same file know that it is alive.

const (
	hostFile  = "-alive-"
	hostEnd   = ".lock"
	olderFile = "-host-" // of the previous version, which looks for it

	lockMost  = 2 * time.Second // how long a host waits for others that check whether it is alive
	lockPause = time.Millisecond
)

func lockHost(base, host string) (*sqlfile.HostLock, error) {
	for end := time.Now().Add(lockMost); ; time.Sleep(lockPause) {
		l, err := sqlfile.TryHost(base+hostFile+host+hostEnd, base+olderFile+host, filelock.Exclusive)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, filelock.ErrHeld) || time.Now().After(end) {
			return nil, fmt.Errorf("jobs: %w", err)
		}
	}
}

// hostAlive reports whether a host holds its lock; if that is unknown, it returns true. It removes the files of a
// host that has ended.
func hostAlive(base, host string) bool {
	host = filepath.Base(host)
	path, older := base+hostFile+host+hostEnd, base+olderFile+host
	if missing(path) && missing(older) {
		return false
	}
	l, err := sqlfile.TryHost(path, older, filelock.Exclusive)
	if err != nil {
		return true
	}
	l.Remove()
	return false
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// removeHosts removes the files that ended hosts have left.
func (s *store) removeHosts() {
	left, err := os.ReadDir(filepath.Dir(s.file.Path))
	if err != nil || s.file.Path == "" {
		return
	}
	base := filepath.Base(s.file.Path)
	for _, e := range left {
		host, ok := strings.CutPrefix(e.Name(), base+olderFile)
		if !ok {
			host, ok = strings.CutPrefix(strings.TrimSuffix(e.Name(), hostEnd), base+hostFile)
		}
		if ok && host != s.host {
			hostAlive(s.file.Path, host)
		}
	}
}
