package jobs

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

const patience = 15 * time.Second // for the disk, and for other hosts on the file

// The request and the result are in a separate table, so that a note on a job does not write them again.
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
CREATE TABLE body (id TEXT PRIMARY KEY REFERENCES job (id), request BLOB, result BLOB);`

const columns = `job.id, owner, title, status, note, created, updated, ttl, poll,
	error, questions, recorded, state, done, total, rev, round, host, place`

// store is the SQLite file. It is opened by the first read or write. All changes use one connection, which also
// orders them.
type store struct {
	file sqlfile.File
	host string // this host among those that share the file

	mu   sync.Mutex
	lock *sqlfile.HostLock // acquired for the first job that runs in this process
	over bool              // closed
}

func newStore(path string) *store {
	return &store{file: sqlfile.File{Path: path, Schema: schema, Version: 1, Journal: 16 << 20}, host: newID()}
}

// openExisting opens the file, if it exists or may be created.
func (s *store) openExisting(create bool) (bool, error) {
	if !create && !s.file.Exists() {
		return false, nil
	}
	_, err := s.file.DB()
	return err == nil, opening(err)
}

// opening adds to an error what was opened.
func opening(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlfile.ErrClosed):
		return ErrStopping
	}
	return fmt.Errorf("the file of jobs: %w; if it is damaged, move it away and a new one is created", err)
}

// lockHost acquires the lock that shows the other hosts on the file that this one is alive.
func (s *store) lockHost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file.Path == "" || s.lock != nil || s.over {
		return nil
	}
	l, err := lockHost(s.file.Path, s.host)
	s.lock = l
	return err
}

func (s *store) closeFile() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	err := s.file.Close()
	if s.lock != nil {
		s.lock.Remove()
		s.lock = nil
	}
	return err
}

// reader and writer return the connections, or nil if there is no file yet.
func (s *store) reader() (*sql.DB, error) {
	db, err := s.file.Reader()
	return db, opening(err)
}

func (s *store) writer(create bool) (*sql.DB, error) {
	if !create && !s.file.Exists() {
		return nil, nil
	}
	db, err := s.file.DB()
	return db, opening(err)
}

// transact runs f in a transaction and then after, in the order of the transactions.
func (s *store) transact(db *sql.DB, f func(*sql.Tx) error, after func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	defer conn.Close() // releases the connection for the next transaction
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

// fields are the JSON columns of a row.
type fields struct{ fault, questions, recorded []byte }

func (r *row) fields() (f fields, err error) {
	var errs [3]error
	f.fault, errs[0] = encodeColumn(r.Error)
	f.questions, errs[1] = encodeColumn(r.Questions)
	recorded := r.Recorded
	if r.Repeatable {
		recorded = map[string]json.RawMessage{repeatKey: json.RawMessage("true")}
		maps.Copy(recorded, r.Recorded)
	}
	f.recorded, errs[2] = encodeColumn(recorded)
	if err = errors.Join(errs[:]...); err != nil {
		err = fmt.Errorf("jobs: a value to store is not JSON: %w", err)
	}
	return f, err
}

// encodeColumn keeps raw JSON unchanged, while encoding/json would escape characters for HTML.
func encodeColumn(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// scan reads the columns, and then more.
func scan(from interface{ Scan(...any) error }, more ...any) (r row, err error) {
	var f fields
	var created, updated, ttl, poll int64
	err = from.Scan(append([]any{&r.ID, &r.Owner, &r.Title, &r.Status, &r.Note, &created, &updated, &ttl, &poll,
		&f.fault, &f.questions, &f.recorded, &r.State, &r.Done, &r.Total, &r.rev, &r.Round, &r.host, &r.place}, more...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return r, ErrNotFound
	}
	if err == nil {
		err = errors.Join(
			json.Unmarshal(f.fault, &r.Error),
			json.Unmarshal(f.questions, &r.Questions),
			json.Unmarshal(f.recorded, &r.Recorded),
		)
	}
	if err != nil {
		return r, fmt.Errorf("jobs: %w", err)
	}
	_, r.Repeatable = r.Recorded[repeatKey]
	delete(r.Recorded, repeatKey)
	r.Created, r.Updated = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	r.TTL, r.Poll = time.Duration(ttl)*time.Millisecond, time.Duration(poll)*time.Millisecond
	return r, nil
}
