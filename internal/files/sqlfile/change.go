package sqlfile

import (
	"context"
	"database/sql"
)

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
// called more than once, and must change nothing but the file.
func (f *File) Change(ctx context.Context, run func(*sql.Tx) error) error {
	f.mu.Lock()
	r := f.replica
	f.mu.Unlock()
	if r != nil {
		return r.Change(ctx, run)
	}
	return f.ChangeHere(ctx, run)
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
