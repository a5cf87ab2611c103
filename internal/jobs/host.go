package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/sqlfile"
)

// hostLock shows to the other hosts on the file that this one is alive: a file
// beside it, locked as long as the process lives, however it ends. SQLite does
// the locking, which it does on every system.
type hostLock struct {
	path string
	db   *sql.DB
	conn *sql.Conn // that holds the lock
}

func lockPath(base, host string) string { return base + "-host-" + host }

func lockHost(base, host string) (*hostLock, error) {
	path := lockPath(base, host)
	for range 50 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("jobs: %w", err)
		}
		f.Close()
		// Until it is locked another host may take the file for a dead one's
		// and remove it, before it is opened here or after.
		l, err := lockFile(path, 2000)
		_, gone := os.Stat(path)
		switch {
		case err == nil && gone == nil:
			return l, nil
		case err == nil:
			l.close()
		case !errors.Is(gone, fs.ErrNotExist):
			return nil, fmt.Errorf("jobs: lock %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("jobs: %s is removed again and again", path)
}

// lockFile waits up to so many milliseconds for the lock.
func lockFile(path string, wait int) (*hostLock, error) {
	uri, err := sqlfile.Address(path)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", fmt.Sprintf("%s?mode=rw&_journal_mode=MEMORY&_busy_timeout=%d", uri, wait))
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(context.Background())
	if err == nil {
		_, err = conn.ExecContext(context.Background(), "BEGIN EXCLUSIVE")
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return &hostLock{path, db, conn}, nil
}

func (l *hostLock) close() {
	l.conn.Close()
	l.db.Close()
}

// release removes the file while nobody else can lock it. It is safe on nil.
func (l *hostLock) release() {
	if l == nil {
		return
	}
	err := os.Remove(l.path)
	l.close()
	if err != nil {
		os.Remove(l.path) // where an open file cannot be removed
	}
}

// hostAlive tells whether a host holds its lock; in doubt it does. The file of
// one that is gone is removed.
func hostAlive(base, host string) bool {
	path := lockPath(base, filepath.Base(host))
	was, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	l, err := lockFile(path, 0)
	if err != nil {
		return true
	}
	// What is locked may be a file that somebody else has removed by now, and
	// the one in its place that of the host, which has made it again.
	if is, err := os.Stat(path); err == nil && was != nil && !(os.SameFile(was, is) && was.ModTime().Equal(is.ModTime())) {
		l.close()
		return true
	}
	l.release()
	return false
}

// removeHosts removes what hosts that are gone left of themselves.
func (s *store) removeHosts() {
	left, err := os.ReadDir(filepath.Dir(s.file.Path))
	if err != nil || s.file.Path == "" {
		return
	}
	for _, e := range left {
		host, ok := strings.CutPrefix(e.Name(), filepath.Base(lockPath(s.file.Path, "")))
		if ok && host != s.host {
			hostAlive(s.file.Path, host)
		}
	}
}
