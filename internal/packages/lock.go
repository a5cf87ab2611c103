package packages

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"gatehouse/internal/sqlfile"
)

const lockName = "in-use.lock"

// lockAlone locks a file for one process; free is false when another has it.
// SQLite does the locking, which it does on every system, and the lock ends
// with its process.
func lockAlone(path string) (unlock func() error, free bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	f.Close()
	address, err := sqlfile.Address(path)
	if err != nil {
		return nil, false, err
	}
	db, err := sql.Open("sqlite", address+"?mode=rw&_journal_mode=MEMORY&_busy_timeout=0")
	if err != nil {
		return nil, false, err
	}
	conn, err := db.Conn(context.Background())
	if err == nil {
		if _, err = conn.ExecContext(context.Background(), "BEGIN EXCLUSIVE"); err == nil {
			return func() error { return errors.Join(conn.Close(), db.Close()) }, true, nil
		}
		conn.Close()
	}
	db.Close()
	if sqlfile.IsBusy(err) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", path, err)
}
