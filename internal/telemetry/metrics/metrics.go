// Package metrics stores what agents and this host count and measure, and sums it over time.
//
// An event has a type and may have a value. Events belong to a scope, the name of a context, and can be read only
// there. Sums by the hour and by the day are stored beside the events, so that a query about weeks reads hundreds
// of rows and not millions.
package metrics

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// These are the limits of an event.
const (
	MaxName   = 200     // bytes of a type, repository, agent, label or its value
	MaxLabels = 16      // labels of one event
	MaxData   = 8 << 10 // bytes of Data
	MaxSeries = 10_000  // different (type, repository, agent) in one scope; more are counted as Other
)

// Other is what an event is counted under when its scope has too many series.
const Other = "other"

// Event is an event to count. Value is a measurement, in the unit that the type implies.
type Event struct {
	At     time.Time // zero means now
	Type   string
	Repo   string
	Agent  string
	Value  *float64
	Labels map[string]string
	Data   json.RawMessage // stored and returned unchanged

	// Count, Min and Max describe several events that were summed before: their number, and their smallest and
	// largest value; Value is then the sum. A zero Count means one event.
	Count    int64
	Min, Max float64
}

// Options configures a Store.
type Options struct {
	Keep time.Duration    // of single events and hourly sums; 0 means 90 days. Daily sums stay ten times as long.
	Now  func() time.Time // nil means time.Now
	Most int              // series of one scope; 0 means MaxSeries
}

// Store stores events in a file. It is safe for concurrent use, also by several processes.
type Store struct {
	o    Options
	file sqlfile.File

	mu     sync.Mutex
	series map[key]int64 // those that were seen, with their rows
	of     map[string]int
	pruned time.Time
}

type key struct{ scope, kind, repo, agent string }

const schema = `
CREATE TABLE series (id INTEGER PRIMARY KEY, scope TEXT NOT NULL, kind TEXT NOT NULL, repo TEXT NOT NULL, agent TEXT NOT NULL,
	UNIQUE (scope, kind, repo, agent));
CREATE TABLE event (id INTEGER PRIMARY KEY, series INTEGER NOT NULL, scope TEXT NOT NULL, at INTEGER NOT NULL,
	n INTEGER NOT NULL, valued INTEGER NOT NULL, sum REAL NOT NULL, min REAL NOT NULL, max REAL NOT NULL, labels TEXT, data BLOB);
CREATE INDEX event_at ON event (scope, at, series);
CREATE TABLE sums (scope TEXT NOT NULL, width INTEGER NOT NULL, at INTEGER NOT NULL, series INTEGER NOT NULL,
	n INTEGER NOT NULL, valued INTEGER NOT NULL, sum REAL NOT NULL, min REAL NOT NULL, max REAL NOT NULL,
	PRIMARY KEY (scope, width, at, series)) WITHOUT ROWID;`

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// Open opens the store in the file at path, which need not exist; "" keeps it
// in memory.
func Open(path string, o Options) *Store {
	if o.Keep <= 0 {
		o.Keep = 90 * day
	}
	if o.Most <= 0 {
		o.Most = MaxSeries
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{
		o:      o,
		file:   sqlfile.File{Path: path, Schema: schema, Version: 1},
		series: map[key]int64{},
		of:     map[string]int{},
	}
}

// Durable reports whether recorded events outlive the Store.
func (s *Store) Durable() bool { return s.file.Path != "" }

// Close closes the file.
func (s *Store) Close() error { return s.file.Close() }

// Record stores events. If it returns without an error they are on disk. folded means that an event was counted as
// Other.
func (s *Store) Record(ctx context.Context, scope string, events ...Event) (folded bool, err error) {
	for i := range events {
		if err := events[i].validate(); err != nil {
			return false, err
		}
	}
	db, err := s.file.DB()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	b := batch{s: s, ctx: ctx, tx: tx, scope: scope, made: map[key]int64{}}
	if err := b.countSeries(); err != nil {
		return false, err
	}
	for i := range events {
		if err := b.addEvent(&events[i]); err != nil {
			return false, err
		}
	}
	if err := b.prune(); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	b.remember()
	return b.folded, nil
}

// Invalid is the error of an invalid event or query.
type Invalid struct{ why string }

func (i *Invalid) Error() string { return i.why }

func invalid(format string, args ...any) error { return &Invalid{fmt.Sprintf(format, args...)} }

// validate returns an error if an event is invalid.
func (e *Event) validate() error {
	if e.Type == "" {
		return invalid("type is empty")
	}
	for name, text := range map[string]string{"type": e.Type, "agent_id": e.Agent, "repo": e.Repo} {
		if len(text) > MaxName {
			return invalid("%s has %d bytes; at most %d", name, len(text), MaxName)
		}
	}
	if len(e.Labels) > MaxLabels {
		return invalid("labels has %d members; at most %d", len(e.Labels), MaxLabels)
	}
	for name, text := range e.Labels {
		if name == "" || len(name) > MaxName || len(text) > MaxName {
			return invalid("labels: a name has 1 to %d bytes and its value at most as many", MaxName)
		}
	}
	if len(e.Data) > MaxData {
		return invalid("data has %d bytes; at most %d", len(e.Data), MaxData)
	}
	return nil
}

// exists returns the database, or nil if nothing was ever recorded.
func (s *Store) exists() (*sql.DB, error) {
	if !s.file.Exists() {
		return nil, fs.ErrNotExist
	}
	return s.file.DB()
}
