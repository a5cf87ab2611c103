// Package sqlfile opens a SQLite file the way this house keeps its records:
// private to its user, durable at every commit, shared by several processes.
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

	// Additions are statements that add to a file of this version what it did not
	// have at first, such as CREATE TABLE IF NOT EXISTS. They run whenever the file
	// is opened, and leave what older programs know of it as it is.
	Additions string

	ForeignKeys bool  // references are enforced
	Journal     int64 // bytes that the write-ahead log is cut to when it was longer; 0 leaves it
	Secret      bool  // a file that other users can read is refused
	Page        int   // bytes of a page of a new file, a power of two; 0 means SQLite's 4,096. Larger ones suit large rows

	mu     sync.Mutex
	db     *sql.DB
	read   *sql.DB // the same as db in memory; nil before it is needed
	look   *sql.DB // one connection, of Changes
	frozen *frozen // what is read where the file cannot be opened for writing; nil elsewhere
	closed bool
}

const (
	readOnly = "&_query_only=1"
	readers  = 2                // connections that only read
	patience = 15 * time.Second // for other processes that make the file at the same moment
	pause    = 20 * time.Millisecond
)

// Exists reports whether there is anything to read: a file, or memory that
// was written to.
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

// DB opens the file, and makes it if it is not there. All statements go
// through one connection, which is also their order.
func (f *File) DB() (*sql.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready()
}

// Reader gives connections that can only read, beside those that write; nil
// when there is no file yet.
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
		return db, nil // a second connection to memory would see another memory
	}
	if f.read, err = f.openConns(readOnly, readers); err != nil {
		return nil, fmt.Errorf("open %s: %w", f.baseName(), err)
	}
	return f.read, nil
}

// Changes returns a number that differs once any process, this program
// included, has committed something; 0 where there is no file yet, and always
// in memory.
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
		// One connection: SQLite counts what the others do.
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
	if f.Page > 0 { // before the journal: a file's pages stay what they are
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

// limit is the journal's in the words of SQLite: -1 is none.
func (f *File) limit() int64 {
	if f.Journal <= 0 {
		return -1
	}
	return f.Journal
}

// openConns keeps its connections: opening one costs more than a query.
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

// ping connects. Processes that make a file together get in each other's way
// where SQLite does not wait by itself: at the change to WAL.
func ping(db *sql.DB) (err error) {
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		if err = db.Ping(); !IsBusy(err) || time.Now().After(end) {
			return err
		}
	}
}

// IsBusy reports whether an error says that another process has the file.
func IsBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == 5 || e.Code()&0xff == 6) // SQLITE_BUSY, SQLITE_LOCKED
}

// IsTaken reports whether an error says that what must be there once is there.
func IsTaken(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == 19 // SQLITE_CONSTRAINT
}

// Address is a path as the driver takes it, with options behind it.
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

// touch makes the file before SQLite does, so that only its user reads it.
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

// prepare makes an empty file what it should be, once among the processes
// that may open it at the same moment, and refuses that of a newer program.
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

// Close closes the file; safe to call twice.
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
