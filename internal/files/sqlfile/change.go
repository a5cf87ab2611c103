package sqlfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// LogTable is the table of a file that is replicated: it says how much of the log the file has.
const LogTable = "cluster_log"

// ErrReplicated is the error of a change that would make this host's file differ from those of the other hosts.
var ErrReplicated = errors.New("it belongs to a node of a cluster: serve this host with " +
	"--cluster, or take it out of the cluster with gatehouse cluster leave")

// Replica makes the changes of a file the same on several hosts.
type Replica interface {
	// Change runs a transaction, more than once if another host changed the file meanwhile. When it returns nil the
	// change is on disk, here and at most hosts.
	Change(ctx context.Context, run func(*sql.Tx) error) error
}

// Replicate makes Change use a replica from now on.
func (f *File) Replicate(r Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replica = r
}

// Change runs a transaction on all hosts that have the file, which is this one if it is not replicated. run may be
// called more than once, and must change nothing but the file. The error wraps ErrReplicated if the file is one of
// several and this program has no replica.
func (f *File) Change(ctx context.Context, run func(*sql.Tx) error) error {
	f.mu.Lock()
	r := f.replica
	f.mu.Unlock()
	if r != nil {
		return r.Change(ctx, run)
	}
	return f.ChangeHere(ctx, func(tx *sql.Tx) error {
		var logs int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = ?", LogTable).
			Scan(&logs); err != nil {
			return err
		}
		if logs > 0 {
			return fmt.Errorf("%s: %w", f.baseName(), ErrReplicated)
		}
		return run(tx)
	})
}

// ChangeHere runs a transaction on the file of this host alone, for what other hosts need not know.
func (f *File) ChangeHere(ctx context.Context, run func(*sql.Tx) error) error {
	db, err := f.DB()
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := run(tx); err != nil {
		return err
	}
	return tx.Commit()
}
