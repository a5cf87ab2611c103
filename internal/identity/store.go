package identity

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

const (
	schemaVersion = 1
	patience      = 5 * time.Second // for the disk, and for other processes on the file
)

// Numbers of users are never used twice, so that what belonged to a user who
// was removed cannot fall to a new one of the same name. Times are in
// milliseconds, 0 is never. ended is what other processes must be told.
const schema = `
CREATE TABLE user (
	number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, roles TEXT NOT NULL,
	password TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0, created INTEGER NOT NULL);
CREATE TABLE token (
	id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
	name TEXT NOT NULL, context TEXT NOT NULL, scopes TEXT NOT NULL,
	created INTEGER NOT NULL, until INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0);
CREATE INDEX token_user ON token (user);
CREATE TABLE login (
	id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
	agent TEXT NOT NULL, created INTEGER NOT NULL, until INTEGER NOT NULL, used INTEGER NOT NULL);
CREATE INDEX login_user ON login (user, created);
CREATE TABLE link (
	kind TEXT NOT NULL, subject TEXT NOT NULL, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
	PRIMARY KEY (kind, subject));
CREATE TABLE ended (
	seq INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, credential TEXT NOT NULL, at INTEGER NOT NULL);
PRAGMA user_version = 1;`

// store is the SQLite file. It opens itself when there is something to read
// or to write.
type store struct {
	path string // "" is memory

	mu     sync.Mutex // while opening and closing
	write  *sql.DB    // one connection
	read   *sql.DB    // the same as write in memory
	closed bool
}

var errClosed = errors.New("the users' file is closed")

// reader gives the connections for reading, nil when there is no file yet.
func (s *store) reader() (*sql.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ready(false)
	return s.read, err
}

func (s *store) writer() (*sql.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ready(true)
	return s.write, err
}

// ready opens the file, if it is there or may be made. It is called with mu
// held.
func (s *store) ready(create bool) error {
	switch {
	case s.closed:
		return errClosed
	case s.write != nil:
		return nil
	case s.path == "" && !create:
		return nil
	case s.path == "":
		return s.open(":memory:")
	}
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		if !create {
			return nil
		}
		if info, err = s.touch(); err != nil {
			return fmt.Errorf("make the file of users: %w", err)
		}
	}
	if err != nil {
		return err
	}
	if m := info.Mode().Perm(); m&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%s can be read by others (mode %04o): run chmod 600 %s", s.path, m, s.path)
	}
	uri, err := fileURI(s.path)
	if err != nil {
		return err
	}
	if err := s.open(uri); err != nil {
		return fmt.Errorf("open the file of users %s: %w; if it is damaged, restore it, or move it away and add the users again", s.path, err)
	}
	return nil
}

// touch makes the file before SQLite does, so that only its user reads it.
func (s *store) touch() (fs.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close())
}

func fileURI(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	abs = filepath.ToSlash(abs)
	if !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: abs}).String(), nil
}

const (
	always    = "?_busy_timeout=5000&_dqs=0&_foreign_keys=1"
	forWrites = always + "&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate&_pragma=journal_size_limit(4194304)"
	forReads  = always + "&_query_only=1"
)

func (s *store) open(name string) (err error) {
	write, err := openDB(name+forWrites, 1)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			write.Close()
		}
	}()
	if err := prepare(write); err != nil {
		return err
	}
	read := write // a second connection to memory would see another memory
	if s.path != "" {
		if read, err = openDB(name+forReads, 2); err != nil {
			return err
		}
	}
	s.write, s.read = write, read
	return nil
}

// openDB keeps its connections: opening one costs more than a query.
func openDB(name string, conns int) (*sql.DB, error) {
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	// Two processes that make the file together get in each other's way where
	// SQLite does not wait by itself: at the change to WAL.
	for try := 0; ; try++ {
		if err = db.Ping(); err == nil || !isBusy(err) || try == 50 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

func isBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == 5 || e.Code()&0xff == 6) // SQLITE_BUSY, SQLITE_LOCKED
}

// isTaken reports whether something with that name or number is there.
func isTaken(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == 19 // SQLITE_CONSTRAINT
}

// prepare makes the tables of a new file and refuses those of a newer program.
func prepare(db *sql.DB) error {
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
	case schemaVersion:
		return nil
	case 0:
		if _, err := tx.Exec(schema); err != nil {
			return err
		}
		return tx.Commit()
	}
	return fmt.Errorf("it has version %d and this program knows %d: use the newer program, or another file", version, schemaVersion)
}

// change runs f in a transaction that is on disk when change returns.
func (s *store) change(ctx context.Context, f func(*sql.Tx) error) error {
	db, err := s.writer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *store) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.write != nil {
		if s.read != s.write {
			err = s.read.Close()
		}
		err = errors.Join(err, s.write.Close())
		s.write, s.read = nil, nil
	}
	return err
}

// moment and stamp are how times lie in the file.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
