// Package sqlfile opens SQLite files that are private to their user, durable after each commit, and shared by
// several processes.
package sqlfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	sqlite "modernc.org/sqlite"
)

// ErrClosed is the error of a File that was closed.
var ErrClosed = errors.New("the file was closed")

// File is one database file, which is opened at its first use. The zero value with a Path and a Schema is ready to
// use. It is safe for concurrent use.
type File struct {
	Path   string // "" keeps everything in memory
	Schema string // statements that create the tables in an empty file
	// Version is stored in the file as user_version; a file of another version is refused. It is at least 1.
	Version int

	// Additions are statements that add to an existing file what later programs need, such as CREATE TABLE IF NOT
	// EXISTS. They run whenever the file is opened, and must not change what older programs use.
	Additions string

	ForeignKeys bool  // foreign keys are enforced
	Journal     int64 // bytes to which a longer write-ahead log is cut; 0 leaves it
	Secret      bool  // a file that other users can read is refused
	// page size of a new file in bytes, a power of two; 0 means SQLite's 4,096. Larger pages suit large rows
	Page int

	mu     sync.Mutex
	db     *sql.DB
	read   *sql.DB // in memory the same as db; nil before its first use
	look   *sql.DB // one connection, for Changes
	frozen *frozen // for reading if the file cannot be opened for writing; otherwise nil
	closed bool

	replica Replica // see Replicate; nil without one
}

const (
	readOnly = "&_query_only=1"
	readers  = 2                // connections for reading
	patience = 15 * time.Second // wait for other processes that create the file at the same time
	pause    = 20 * time.Millisecond
)

// Exists reports whether there is something to read: a file, or memory that was written.
func (f *File) Exists() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.there()
}

func (f *File) there() bool {
	if f.db != nil || f.Path == "" {
		return f.db != nil
	}
	_, err := os.Stat(f.Path)
	return !errors.Is(err, fs.ErrNotExist)
}

// DB opens the file, and creates it if it does not exist. All statements use one connection, and are executed in
// its order.
func (f *File) DB() (*sql.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready()
}

// Reader returns connections that can only read; nil if there is no file yet.
func (f *File) Reader() (*sql.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed && !f.there() {
		return nil, nil
	}
	db, err := f.ready()
	if err != nil {
		return f.readFrozen(err)
	}
	if f.read != nil {
		return f.read, nil
	}
	if f.read = db; f.Path == "" {
		return db, nil // a second connection would see another memory
	}
	if f.read, err = f.openConns(readOnly, readers); err != nil {
		return nil, fmt.Errorf("open %s: %w", f.baseName(), err)
	}
	return f.read, nil
}

// Changes returns a number that changes when any process, this program included, commits. It is 0 if there is no
// file yet, and always in memory.
func (f *File) Changes(ctx context.Context) (version int64, err error) {
	if f.Path == "" || !f.Exists() {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.ready(); err != nil {
		if _, ferr := f.readFrozen(err); ferr != nil {
			return 0, ferr
		}
		return changesFrozen, nil
	}
	if f.look == nil {
		// One connection, because SQLite counts the changes of other connections.
		if f.look, err = f.openConns(readOnly, 1); err != nil {
			return 0, fmt.Errorf("open %s: %w", f.baseName(), err)
		}
	}
	err = f.look.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version)
	return version, err
}

func (f *File) ready() (*sql.DB, error) {
	if f.closed {
		return nil, ErrClosed
	}
	if f.db != nil {
		return f.db, nil
	}
	if f.frozen != nil && time.Since(f.frozen.at) < tryAgain {
		return nil, f.frozen.cause
	}
	db, err := f.openDB()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.baseName(), err)
	}
	f.db = db
	f.thaw()
	return db, nil
}

func (f *File) baseName() string {
	if f.Path == "" {
		return "a database in memory"
	}
	return f.Path
}

func (f *File) openDB() (*sql.DB, error) {
	if f.Path != "" {
		if err := f.touch(); err != nil {
			return nil, err
		}
	}
	how := ""
	if f.Page > 0 { // before the journal, because the page size of a file cannot change
		how = fmt.Sprintf("&_pragma=page_size(%d)", f.Page)
	}
	db, err := f.openConns(
		how+fmt.Sprintf(
			"&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate&_pragma=journal_size_limit(%d)",
			f.limit(),
		),
		1,
	)
	if err != nil {
		return nil, err
	}
	if err := f.prepare(db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// limit returns the journal's limit for SQLite: -1 means none.
func (f *File) limit() int64 {
	if f.Journal <= 0 {
		return -1
	}
	return f.Journal
}

// openConns keeps its connections open, because opening one costs more than a query.
func (f *File) openConns(how string, conns int) (*sql.DB, error) {
	name := ":memory:"
	if f.Path != "" {
		var err error
		if name, err = Address(f.Path); err != nil {
			return nil, err
		}
	}
	name += "?_busy_timeout=5000&_dqs=0"
	if f.ForeignKeys {
		name += "&_foreign_keys=1"
	}
	db, err := sql.Open("sqlite", name+how)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := ping(db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// ping connects. Processes that create a file together fail at the change to WAL, where SQLite does not wait.
func ping(db *sql.DB) (err error) {
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		if err = db.Ping(); !IsBusy(err) || time.Now().After(end) {
			return err
		}
	}
}

// IsBusy reports whether an error means that another process uses the file.
func IsBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == 5 || e.Code()&0xff == 6) // SQLITE_BUSY, SQLITE_LOCKED
}

// IsTaken reports whether an error means that a unique value exists already.
func IsTaken(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == 19 // SQLITE_CONSTRAINT
}

// Address returns the address of a path for the driver, with options.
func Address(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if abs = filepath.ToSlash(abs); !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: abs}).String(), nil
}

// touch creates the file before SQLite does, so that only its user can read it.
func (f *File) touch() error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if m := info.Mode().Perm(); f.Secret && m&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("it can be read by others (mode %04o): run chmod 600 %s", m, f.Path)
	}
	return nil
}

// prepare creates the tables in an empty file, once among the processes that open it at the same time, and refuses
// a file of a newer program.
func (f *File) prepare(db *sql.DB) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
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
		if f.Additions == "" {
			return nil
		}
	case 0:
		if _, err := tx.Exec(f.Schema); err != nil {
			return err
		}
		if _, err := tx.Exec(fmt.Sprintf("PRAGMA user_version = %d", f.Version)); err != nil {
			return err
		}
	default:
		return fmt.Errorf(
			"it has format %d and this program knows %d: use the program that wrote it, or another file",
			version,
			f.Version,
		)
	}
	if f.Additions != "" {
		if _, err := tx.Exec(f.Additions); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Close closes the file. It may be called twice.
func (f *File) Close() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.read == f.db {
		f.read = nil
	}
	for _, db := range []*sql.DB{f.look, f.read, f.db} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	f.db, f.read, f.look = nil, nil, nil
	return errors.Join(err, f.thaw())
}
