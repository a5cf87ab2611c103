// Package sqlfile opens a SQLite file the way this house keeps its records:
// private to its user, durable at every commit, shared by several processes.
package sqlfile

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // the driver
)

// ErrClosed is the answer of a File that was closed.
var ErrClosed = errors.New("the file was closed")

// File is one database file, opened when it is first needed. The zero value
// with a Path and a Schema is ready. Safe for concurrent use.
type File struct {
	Path   string // "" keeps everything in memory
	Schema string // statements that make an empty file what it should be
	// Version is kept in the file as user_version; a file of another version
	// is refused. At least 1.
	Version int

	mu     sync.Mutex
	db     *sql.DB
	closed bool
}

// Exists reports whether there is anything to read: a file, or memory that
// was written to.
func (f *File) Exists() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db != nil || f.Path == "" {
		return f.db != nil
	}
	_, err := os.Stat(f.Path)
	return !errors.Is(err, fs.ErrNotExist)
}

// DB opens the file, and makes it if it is not there. All statements go
// through one connection, which is also their order.
func (f *File) DB() (*sql.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	if f.db != nil {
		return f.db, nil
	}
	db, err := f.open()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.name(), err)
	}
	f.db = db
	return db, nil
}

func (f *File) name() string {
	if f.Path == "" {
		return "a database in memory"
	}
	return f.Path
}

func (f *File) open() (*sql.DB, error) {
	name := ":memory:"
	if f.Path != "" {
		if err := touch(f.Path); err != nil {
			return nil, err
		}
		abs, err := filepath.Abs(f.Path)
		if err != nil {
			return nil, err
		}
		if abs = filepath.ToSlash(abs); !strings.HasPrefix(abs, "/") {
			abs = "/" + abs // a drive letter
		}
		name = (&url.URL{Scheme: "file", Path: abs}).String()
	}
	db, err := sql.Open("sqlite", name+"?_busy_timeout=5000&_dqs=0&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1) // opening a connection costs more than a query
	if err := f.prepare(db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// touch makes the file before SQLite does, so that only its user reads it.
func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// prepare makes an empty file what it should be, once among the processes
// that may open it at the same moment.
func (f *File) prepare(db *sql.DB) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int
	if err := tx.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch version {
	case f.Version:
		return nil
	case 0:
	default:
		return fmt.Errorf("it was written by another release (format %d, expected %d)", version, f.Version)
	}
	if _, err := tx.Exec(f.Schema); err != nil {
		return err
	}
	if _, err := tx.Exec(fmt.Sprintf("PRAGMA user_version = %d", f.Version)); err != nil {
		return err
	}
	return tx.Commit()
}

// Close closes the file; safe to call twice.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.db == nil {
		return nil
	}
	db := f.db
	f.db = nil
	return db.Close()
}
