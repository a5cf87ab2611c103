// Package contextstore stores the contexts that administrators create while the host runs: their content, who may
// use them, and what they define for themselves.
//
// A record is checked before it is stored, and every change is atomic. The store is a file that the command line
// and running hosts share; each follows the changes of the others within a second. The contexts of the
// configuration are not stored: Fixed adds the stored contexts to them.
package contextstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// These are the errors of the store. An invalid record gives an *Invalid.
var (
	ErrNotFound = errors.New("no such context")
	ErrExists   = errors.New("a context of that name exists")
	ErrFixed    = errors.New("that context is fixed and cannot be changed here")
	ErrStale    = errors.New("it was changed meanwhile")
	ErrFull     = fmt.Errorf("there are already %d contexts, which is the limit; delete one first", maxRecords)
)

const maxRecords = 1000

const tables = `
CREATE TABLE context (name TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE turn (n INTEGER NOT NULL);
INSERT INTO turn VALUES (0);`

// Options configures a Store. The zero value is usable.
type Options struct {
	Log  *slog.Logger
	Look time.Duration // how often the file is checked for changes of other processes; 0 means 250 ms
	// Fixed reports whether a name belongs to a context that is not in the store; nil means that only the
	// administration does.
	Fixed func(name string) bool
	// Modules returns the names of modules that a context may choose from; nil leaves them unchecked.
	Modules func() []string
	// Cluster says that the host is a node of a cluster, so that contexts can have labels.
	Cluster bool
}

// Store holds the records. It is safe for concurrent use.
type Store struct {
	opts Options
	file sqlfile.File
	now  atomic.Pointer[Snapshot]

	// reading is held while the records are read from the file, which takes longer than mu may be held.
	reading sync.Mutex

	// mu guards the fields below.
	mu      sync.Mutex
	changed []func()
	made    map[string]int64 // by name, the last turn in which this process changed it
}

// Made reports whether this process changed a context: made the change that led to a revision, or removed the
// context after that revision.
func (s *Store) Made(name string, revision int64, removed bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, ok := s.made[name]
	if removed {
		delete(s.made, name)
		return ok && turn > revision
	}
	return ok && turn == revision
}

// Snapshot is all records at one moment, by name. It is immutable.
type Snapshot struct {
	Turn    int64 // grows with every change
	Records []Record
}

// Find returns the record with this name, or nil.
func (s *Snapshot) Find(name string) *Record {
	i, ok := slices.BinarySearchFunc(
		s.Records,
		name,
		func(r Record, n string) int { return strings.Compare(r.Name, n) },
	)
	if !ok {
		return nil
	}
	return &s.Records[i]
}

// Open opens the store in the file at path, which need not exist; "" keeps it in memory. It returns an error if
// the file cannot be read.
func Open(path string, o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Look == 0 {
		o.Look = 250 * time.Millisecond
	}
	if o.Fixed == nil {
		o.Fixed = func(string) bool { return false }
	}
	b := &Store{opts: o, file: sqlfile.File{Path: path, Schema: tables, Version: 1}}
	b.now.Store(&Snapshot{})
	if _, err := b.readChanges(); err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	return b, nil
}

// Replicate makes the store the same on all nodes of a cluster: replicate gets its file, and what is called after each
// change of another node.
func (s *Store) Replicate(replicate func(file *sqlfile.File, applied func() error) error) error {
	if s.file.Path == "" {
		return nil
	}
	return replicate(&s.file, s.Refresh)
}

// Close closes the file.
func (s *Store) Close() error { return s.file.Close() }

// Current returns the content of the store, as far as this process knows it.
func (s *Store) Current() *Snapshot { return s.now.Load() }

// OnChange registers a function that is called when Current changes. It is called by the goroutine that made the
// change, or by Run, and may be called concurrently.
func (s *Store) OnChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, f)
}

// Run follows changes of other processes until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.Look)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := s.Refresh()
		if err != nil && !failing {
			s.opts.Log.Error("contexts cannot be read; the known ones stay in force", "err", err)
		}
		failing = err != nil
	}
}

// Refresh reads the records if they have changed and calls the registered functions. Run does so too, soon after
// every change.
func (s *Store) Refresh() error {
	if !s.file.Exists() {
		return nil
	}
	changed, err := s.readChanges()
	if changed {
		s.notifySubscribers()
	}
	return err
}

func (s *Store) notifySubscribers() {
	s.mu.Lock()
	fs := s.changed
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// readChanges reads the records, unless they are unchanged.
func (s *Store) readChanges() (changed bool, err error) {
	if !s.file.Exists() {
		return false, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	db, err := s.file.DB()
	if err != nil {
		return false, err
	}
	var turn int64
	if err := db.QueryRow("SELECT n FROM turn").Scan(&turn); err != nil {
		return false, err
	}
	if turn == s.now.Load().Turn {
		return false, nil
	}
	next, err := readAll(db)
	if err != nil {
		return false, err
	}
	s.now.Store(next)
	return true, nil
}

func readAll(db *sql.DB) (*Snapshot, error) {
	tx, err := db.Begin()
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	s := &Snapshot{}
	if err := tx.QueryRow("SELECT n FROM turn").Scan(&s.Turn); err != nil {
		return nil, err
	}
	rows, err := tx.Query("SELECT name, record FROM context ORDER BY name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var raw []byte
		if err := rows.Scan(&name, &raw); err != nil {
			return nil, err
		}
		var r Record
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("context %s: %w", name, err)
		}
		r.Name = name
		s.Records = append(s.Records, r)
	}
	return s, rows.Err()
}

// Create stores a new context. by is the name of its creator.
func (s *Store) Create(r Record, by string) (Record, error) {
	if err := s.admit(&r); err != nil {
		return r, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	r.Created, r.Updated, r.By = now, now, by
	return r, s.changeRecord(r.Name, func(tx *sql.Tx, turn int64) error {
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM context").Scan(&n); err != nil {
			return err
		}
		if n >= maxRecords {
			return ErrFull
		}
		r.Revision = turn
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		res, err := tx.Exec("INSERT INTO context VALUES (?,?) ON CONFLICT DO NOTHING", r.Name, raw)
		return changedOne(res, err, ErrExists)
	})
}

// Update changes a context: change receives the record and modifies it, except for its name. If change returns an
// error, nothing is stored. No other process can change the store while it runs.
func (s *Store) Update(name string, by string, change func(*Record) error) (r Record, err error) {
	if s.opts.Fixed(name) || name == Admin {
		return r, ErrFixed
	}
	if !s.file.Exists() {
		return r, ErrNotFound
	}
	return r, s.changeRecord(name, func(tx *sql.Tx, turn int64) error {
		var raw []byte
		err := tx.QueryRow("SELECT record FROM context WHERE name=?", name).Scan(&raw)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		var was Record
		if err := json.Unmarshal(raw, &was); err != nil {
			return err
		}
		if r, err = s.amended(was, change); err != nil {
			return err
		}
		r.Updated, r.By, r.Revision = time.Now().UTC().Truncate(time.Second), by, turn
		if raw, err = json.Marshal(r); err != nil {
			return err
		}
		_, err = tx.Exec("UPDATE context SET record=? WHERE name=?", raw, name)
		return err
	})
}

// amended returns a record after a change, checked.
func (s *Store) amended(was Record, change func(*Record) error) (Record, error) {
	r := was
	if err := change(&r); err != nil {
		return r, err
	}
	r.Name, r.Created = was.Name, was.Created
	return r, s.admit(&r)
}

// Delete removes a context from the store.
func (s *Store) Delete(name string) error {
	if s.opts.Fixed(name) || name == Admin {
		return ErrFixed
	}
	if !s.file.Exists() {
		return ErrNotFound
	}
	return s.changeRecord(name, func(tx *sql.Tx, _ int64) error {
		res, err := tx.Exec("DELETE FROM context WHERE name=?", name)
		return changedOne(res, err, ErrNotFound)
	})
}

func changedOne(res sql.Result, err, otherwise error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n != 1 {
		err = otherwise
	}
	return err
}

// changeRecord changes one context: it runs f in its own transaction, which is one turn.
func (s *Store) changeRecord(name string, f func(tx *sql.Tx, turn int64) error) error {
	err := s.file.Change(context.Background(), func(tx *sql.Tx) error {
		var turn int64
		if err := tx.QueryRow("UPDATE turn SET n=n+1 RETURNING n").Scan(&turn); err != nil {
			return err
		}
		if err := f(tx, turn); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.made == nil {
			s.made = map[string]int64{}
		}
		s.made[name] = turn // before other processes can see it; if it fails, none can
		return nil
	})
	if err != nil {
		return err
	}
	return s.Refresh()
}
