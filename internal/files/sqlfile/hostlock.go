package sqlfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"gatehouse/internal/files/filelock"
)

// A HostLock is held by a host while it runs, and is also seen by hosts of the version before. Those lock by means
// of SQLite, on a file of their own: one file cannot carry both locks, because on some systems the two techniques
// exclude each other even in one process.
//
// In the next version filelock alone is enough; HostLock is then removed.
type HostLock struct {
	lock  *filelock.Lock
	older *olderLock
}

// TryHost locks the file at path, and the one at older in the way of the version before. It creates missing files.
// It does not wait: the error is filelock.ErrHeld if a host of either version has the lock.
func TryHost(path, older string, mode filelock.Mode) (*HostLock, error) {
	l, err := filelock.Try(path, mode)
	if err != nil {
		return nil, err
	}
	o, err := tryOlder(older, mode)
	if err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return &HostLock{l, o}, nil
}

// Release ends the lock and leaves its files.
func (l *HostLock) Release() error { return errors.Join(l.older.unlock(), l.lock.Release()) }

// Remove removes the files and ends the lock, which must be exclusive.
func (l *HostLock) Remove() error {
	err := os.Remove(l.older.path)
	rerr := l.older.unlock()
	if err != nil {
		os.Remove(l.older.path) // on systems that cannot remove an open file
	}
	return errors.Join(rerr, l.lock.Remove())
}

// olderLock is a lock in the way of the version before.
type olderLock struct {
	path string
	db   *sql.DB
	conn *sql.Conn // its transaction is the lock
}

// tryOlder locks the file that is at path when it returns, because a host may remove the file of another one that
// has ended.
func tryOlder(path string, mode filelock.Mode) (*olderLock, error) {
	for range 50 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		was, err := f.Stat()
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		l, err := openOlder(path, mode)
		is, gone := os.Stat(path)
		same := gone == nil && os.SameFile(was, is) && was.ModTime().Equal(is.ModTime())
		switch {
		case err == nil && same:
			return l, nil
		case err == nil:
			err = l.unlock()
		case !same:
			err = nil
		case IsBusy(err):
			return nil, filelock.ErrHeld
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("lock %s: it is removed again and again", path)
}

func openOlder(path string, mode filelock.Mode) (*olderLock, error) {
	address, err := Address(path)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", address+"?mode=rw&_journal_mode=MEMORY&_busy_timeout=0")
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	statements := []string{"BEGIN EXCLUSIVE"}
	if mode == filelock.Shared {
		statements = []string{"BEGIN", "SELECT COUNT(*) FROM sqlite_schema"}
	}
	for _, s := range statements {
		if _, err := conn.ExecContext(context.Background(), s); err != nil {
			conn.Close()
			db.Close()
			return nil, err
		}
	}
	return &olderLock{path, db, conn}, nil
}

func (l *olderLock) unlock() error { return errors.Join(l.conn.Close(), l.db.Close()) }
