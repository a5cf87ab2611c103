package backup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "gatehouse/internal/sqlfile" // the driver
)

// SQLite does the locking, which it does on every system. A lock ends with its
// process.

// lockAlone locks a file in a folder for one holder; free is false when others
// hold it, and then there is nothing to unlock.
func lockAlone(folder, name string) (unlock func() error, free bool, err error) {
	return lock(folder, name, "BEGIN EXCLUSIVE")
}

const (
	sharedWait = 30 * time.Second // for another host that puts a restore in place
	sharedLook = 10 * time.Millisecond
)

// lockShared locks a file for one of many holders. One holder alone keeps it
// for as long as moving files takes, which is waited for.
func lockShared(folder, name string) (unlock func() error, err error) {
	for end := time.Now().Add(sharedWait); ; time.Sleep(sharedLook) {
		unlock, got, err := lock(folder, name, "BEGIN", "SELECT COUNT(*) FROM sqlite_schema")
		if got || err != nil {
			return unlock, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s is held by a restore that does not end", filepath.Join(folder, name))
		}
	}
}

// lock runs statements that take a lock for as long as their connection is
// open.
func lock(folder, name string, statements ...string) (unlock func() error, got bool, err error) {
	path, err := lockFile(folder, name)
	if err != nil {
		return nil, false, err
	}
	db, err := sql.Open("sqlite", path+"?mode=rw&_journal_mode=MEMORY&_busy_timeout=0")
	if err != nil {
		return nil, false, err
	}
	conn, err := db.Conn(context.Background())
	if err == nil {
		unlock = func() error { return errors.Join(conn.Close(), db.Close()) }
	}
	for _, s := range statements {
		if err == nil {
			_, err = conn.ExecContext(context.Background(), s)
		}
	}
	if err == nil {
		return unlock, true, nil
	}
	db.Close()
	if busy(err) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", filepath.Join(folder, name), err)
}

// busy reports whether SQLite says that others are at it.
func busy(err error) bool {
	said, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	return ok && said.Code()&0xff == 5
}

// lockFile makes the file, private to its user, and gives its address.
func lockFile(folder, name string) (string, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(abs, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	if abs = filepath.ToSlash(abs); !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: abs}).String(), f.Close()
}
