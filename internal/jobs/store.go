package jobs

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sqlite "modernc.org/sqlite"
)

const (
	schemaVersion = 1
	patience      = 15 * time.Second // for the disk, and for other hosts on the file
)

// The request and the result have a table of their own, so that a note on a
// job does not write them again.
const schema = `
CREATE TABLE job (
	id TEXT PRIMARY KEY, owner TEXT NOT NULL, title TEXT NOT NULL, status TEXT NOT NULL, note TEXT NOT NULL,
	created INTEGER NOT NULL, updated INTEGER NOT NULL, ttl INTEGER NOT NULL, poll INTEGER NOT NULL,
	error TEXT NOT NULL, questions TEXT NOT NULL, recorded TEXT NOT NULL, state BLOB,
	done REAL NOT NULL, total REAL NOT NULL,
	rev INTEGER NOT NULL, round INTEGER NOT NULL, host TEXT NOT NULL,
	place INTEGER NOT NULL);
CREATE UNIQUE INDEX job_place ON job (owner, place);
CREATE INDEX job_ended ON job (owner, status, updated);
CREATE INDEX job_host ON job (status, host);
CREATE TABLE body (id TEXT PRIMARY KEY REFERENCES job (id), request BLOB, result BLOB);
PRAGMA user_version = 1;`

const columns = `job.id, owner, title, status, note, created, updated, ttl, poll,
	error, questions, recorded, state, done, total, rev, round, host, place`

// store is the SQLite file. It opens itself when there is something to read or
// to write. All changes go through one connection, which is also their order.
type store struct {
	path string // "" is memory
	host string // this instance, among those that share the file

	mu     sync.Mutex // while opening and closing
	write  *sql.DB    // one connection
	read   *sql.DB    // the same as write in memory
	lock   *hostLock  // taken for the first job that runs here
	closed bool
}

// ready opens the file, if it is there or may be made.
func (s *store) ready(create bool) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, ErrStopping
	case s.write != nil:
		return true, nil
	case s.path == "" && !create:
		return false, nil
	case s.path == "":
		return true, s.open(":memory:", ":memory:")
	}
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
		if !create {
			return false, nil
		}
		if err := s.touch(); err != nil {
			return false, fmt.Errorf("make the file of jobs: %w", err)
		}
	}
	uri, err := fileURI(s.path)
	if err != nil {
		return false, err
	}
	if err := s.open(uri, uri); err != nil {
		return false, fmt.Errorf("open the file of jobs %s: %w; if it is damaged, move it away and a new one is made", s.path, err)
	}
	return true, nil
}

// touch makes the file before SQLite does, so that only its user reads it.
func (s *store) touch() error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
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

func (s *store) open(writeName, readName string) (err error) {
	const limits = "?_busy_timeout=5000&_dqs=0"
	write, err := openDB(writeName+limits+"&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate&_pragma=journal_size_limit(16777216)", 1)
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
		if read, err = openDB(readName+limits+"&_query_only=1", 2); err != nil {
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
	// Two hosts that make the file together get in each other's way where
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

// hold makes this host known as alive to the others on the file.
func (s *store) hold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path == "" || s.lock != nil || s.closed {
		return nil
	}
	l, err := lockHost(s.path, s.host)
	s.lock = l
	return err
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
	s.lock.release()
	s.lock = nil
	return err
}

// reader and writer give the connections, or nil when there is no file yet.
func (s *store) reader() (*sql.DB, error) {
	if there, err := s.ready(false); err != nil || !there {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read == nil {
		return nil, ErrStopping
	}
	return s.read, nil
}

func (s *store) writer(create bool) (*sql.DB, error) {
	if there, err := s.ready(create); err != nil || !there {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write == nil {
		return nil, ErrStopping
	}
	return s.write, nil
}

// transact runs f in a transaction and then, still in the order of the
// transactions, after.
func (s *store) transact(db *sql.DB, f func(*sql.Tx) error, after func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	defer conn.Close() // lets the next one in
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	after()
	return nil
}

// fields are what a row holds as JSON.
type fields struct{ fault, questions, recorded []byte }

func (r *row) fields() (f fields, err error) {
	var errs [3]error
	f.fault, errs[0] = encode(r.Error)
	f.questions, errs[1] = encode(r.Questions)
	f.recorded, errs[2] = encode(r.Recorded)
	if err = errors.Join(errs[:]...); err != nil {
		err = fmt.Errorf("jobs: what is to be kept is not JSON: %w", err)
	}
	return f, err
}

// encode leaves raw JSON as it is: encoding/json would escape what HTML minds.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// scan reads the columns, and more after them.
func scan(from interface{ Scan(...any) error }, more ...any) (r row, err error) {
	var f fields
	var created, updated, ttl, poll int64
	err = from.Scan(append([]any{&r.ID, &r.Owner, &r.Title, &r.Status, &r.Note, &created, &updated, &ttl, &poll,
		&f.fault, &f.questions, &f.recorded, &r.State, &r.Done, &r.Total, &r.rev, &r.Round, &r.host, &r.place}, more...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return r, ErrNotFound
	}
	if err == nil {
		err = errors.Join(json.Unmarshal(f.fault, &r.Error), json.Unmarshal(f.questions, &r.Questions), json.Unmarshal(f.recorded, &r.Recorded))
	}
	if err != nil {
		return r, fmt.Errorf("jobs: %w", err)
	}
	r.Created, r.Updated = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	r.TTL, r.Poll = time.Duration(ttl)*time.Millisecond, time.Duration(poll)*time.Millisecond
	return r, nil
}
