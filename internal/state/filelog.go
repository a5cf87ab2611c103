package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

const tables = `
CREATE TABLE mount (
	name     TEXT PRIMARY KEY,
	revision INTEGER NOT NULL, -- of the newest change
	base     INTEGER NOT NULL, -- of the snapshot
	bytes    INTEGER NOT NULL  -- of the changes after it
) WITHOUT ROWID;
CREATE TABLE snapshot (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE change (
	name     TEXT NOT NULL,
	revision INTEGER NOT NULL,
	patch    BLOB NOT NULL,
	PRIMARY KEY (name, revision)
);`

const version = 1

// FileOptions configures a FileLog. The zero value is usable.
type FileOptions struct {
	// Look is how often the file is checked for changes of other processes; 0 means 1 s.
	Look time.Duration
	// Compact is the number of changes after which a mount is written as a whole and the changes are removed; 0
	// means 4096. It also happens if the changes have more bytes than CompactBytes (0 means 4 MiB) and than the
	// value.
	Compact      int
	CompactBytes int
}

// FileLog is a log in a SQLite file. Accepted changes survive a crash of the process and a power failure. Several
// processes may share the file.
type FileLog struct {
	o    FileOptions
	file sqlfile.File

	mu      sync.Mutex
	changed chan struct{} // closed with the next change of this process
	closed  chan struct{}
}

// OpenFile opens the log in the file at path, which need not exist; "" keeps it in memory. It returns an error if
// the file cannot be read or belongs to another release.
func OpenFile(path string, o FileOptions) (*FileLog, error) {
	if o.Look == 0 {
		o.Look = time.Second
	}
	if o.Compact == 0 {
		o.Compact = 4096
	}
	if o.CompactBytes == 0 {
		o.CompactBytes = 4 << 20
	}
	l := &FileLog{
		o: o, file: sqlfile.File{Path: path, Schema: tables, Version: version},
		changed: make(chan struct{}), closed: make(chan struct{}),
	}
	if _, err := l.file.DB(); err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	return l, nil
}

// Close ends all followers and closes the file. It is safe to call twice.
func (l *FileLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return l.file.Close()
}

// within runs f in a transaction: one that only reads, or one that excludes all other processes.
func (l *FileLog) within(ctx context.Context, reads bool, f func(*sql.Tx) error) error {
	db, err := l.file.DB()
	if errors.Is(err, sqlfile.ErrClosed) {
		return ErrClosed
	}
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: reads})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// kept is the stored state of a mount.
type kept struct{ revision, base, bytes uint64 }

func findMount(ctx context.Context, tx *sql.Tx, mount string) (k kept, err error) {
	err = tx.QueryRowContext(ctx, "SELECT revision, base, bytes FROM mount WHERE name = ?", mount).
		Scan(&k.revision, &k.base, &k.bytes)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return k, err
}

// Append implements Log.
func (l *FileLog) Append(ctx context.Context, mount string, expected uint64, p Patch) (uint64, error) {
	b, err := encodePatch(p)
	if err != nil {
		return 0, err
	}
	next := expected + 1
	err = l.within(ctx, false, func(tx *sql.Tx) error {
		k, err := findMount(ctx, tx, mount)
		if err != nil {
			return err
		}
		if k.revision != expected {
			return &Conflict{mount, k.revision}
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO change VALUES (?, ?, ?)", mount, next, b); err != nil {
			return err
		}
		k.revision, k.bytes = next, k.bytes+uint64(len(b))
		return l.writeMount(ctx, tx, mount, k)
	})
	if _, ok := errors.AsType[*Conflict](err); ok {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("keep a change of %s: %w", mount, err)
	}
	l.wakeFollowers()
	return next, nil
}

// writeMount writes the state of a mount, and its whole value if there are many changes.
func (l *FileLog) writeMount(ctx context.Context, tx *sql.Tx, mount string, k kept) error {
	if k.revision-k.base >= uint64(l.o.Compact) || k.bytes > uint64(l.o.CompactBytes) {
		v, err := fold(ctx, tx, mount, k)
		if err != nil {
			return err
		}
		b, err := encodeValue(v)
		if err != nil {
			return err
		}
		if k.revision-k.base >= uint64(l.o.Compact) || k.bytes > uint64(len(b)) {
			return writeMount(ctx, tx, mount, k.revision, b)
		}
	}
	_, err := tx.ExecContext(
		ctx,
		"INSERT OR REPLACE INTO mount VALUES (?, ?, ?, ?)",
		mount,
		k.revision,
		k.base,
		k.bytes,
	)
	return err
}

// writeMount replaces the changes of a mount by a whole value.
func writeMount(ctx context.Context, tx *sql.Tx, mount string, revision uint64, value []byte) error {
	_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO snapshot VALUES (?, ?)", mount, value)
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM change WHERE name = ?", mount)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO mount VALUES (?, ?, ?, 0)", mount, revision, revision)
	}
	return err
}

// fold returns the value of a mount from its snapshot and the changes after it.
func fold(ctx context.Context, tx *sql.Tx, mount string, k kept) (v any, err error) {
	var b []byte
	err = tx.QueryRowContext(ctx, "SELECT value FROM snapshot WHERE name = ?", mount).Scan(&b)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return nil, err
	default:
		if v, err = parseValue(b); err != nil {
			return nil, fmt.Errorf("the snapshot of %s is damaged: %w", mount, err)
		}
	}
	p, err := changes(ctx, tx, mount, k.base, k.revision)
	if err != nil {
		return nil, err
	}
	if v, err = Apply(v, p); err != nil {
		return nil, fmt.Errorf("the changes of %s are damaged: %w", mount, err)
	}
	return v, nil
}

// changes returns the changes from one revision to another, as one patch.
func changes(ctx context.Context, tx *sql.Tx, mount string, from, to uint64) (all Patch, err error) {
	rows, err := tx.QueryContext(
		ctx,
		"SELECT revision, patch FROM change WHERE name = ? AND revision > ? ORDER BY revision",
		mount,
		from,
	)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var revision uint64
		var b sql.RawBytes
		if err := rows.Scan(&revision, &b); err != nil {
			return nil, err
		}
		if from++; revision != from {
			return nil, fmt.Errorf("the changes of %s are damaged: revision %d is missing", mount, from)
		}
		p, err := DecodePatch(b)
		if err != nil {
			return nil, fmt.Errorf("the changes of %s are damaged: revision %d: %w", mount, revision, err)
		}
		all = append(all, p...)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if from != to {
		return nil, fmt.Errorf("the changes of %s are damaged: revision %d is missing", mount, to)
	}
	return all, nil
}

// since returns the change from a revision to the current one.
func (l *FileLog) since(ctx context.Context, mount string, from uint64) (c Change, err error) {
	err = l.within(ctx, true, func(tx *sql.Tx) error {
		k, err := findMount(ctx, tx, mount)
		if err != nil {
			return err
		}
		c.Revision = k.revision
		switch {
		case from == k.revision:
		case from < k.base, from > k.revision:
			var v any
			if v, err = fold(ctx, tx, mount, k); err == nil {
				c.Patch = replaceAll(v)
			}
		default:
			c.Patch, err = changes(ctx, tx, mount, from, k.revision)
		}
		return err
	})
	return c, err
}

// wakeFollowers notifies the followers in this process.
func (l *FileLog) wakeFollowers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *FileLog) nextChange() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Follow implements Log. Changes of other processes are seen within FileOptions.Look.
func (l *FileLog) Follow(ctx context.Context, mount string, from uint64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		tick := time.NewTicker(l.o.Look)
		defer tick.Stop()
		for first := true; ; first = false {
			changed := l.nextChange()
			c, err := l.since(ctx, mount, from)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				yield(Change{}, err)
				return
			}
			if (first || c.Revision != from) && !yield(c, nil) {
				return
			}
			from = c.Revision
			select {
			case <-changed:
			case <-tick.C:
			case <-l.closed:
				yield(Change{}, ErrClosed)
				return
			case <-ctx.Done():
				return
			}
		}
	}
}
