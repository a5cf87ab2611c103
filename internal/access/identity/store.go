package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/files/sqlfile"
)

const patience = 5 * time.Second // for the disk, and for other processes on the file

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
	seq INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, credential TEXT NOT NULL, at INTEGER NOT NULL);`

// additions came later, so that files of earlier programs get them when they are
// opened. A device is a browser in which a user has logged in. Retired are the users
// who were removed; an owner is the id of a user whose name was another one's. A
// removal tells hosts whose things to end, and an ending is what one host has ended
// of it: a JSON array of texts or, if it handed some over, an object of two arrays,
// or "" while the host is still ending them. An heir is the owner that gets what a
// removed user had.
const additions = `
CREATE TABLE IF NOT EXISTS device (
	hash BLOB PRIMARY KEY, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, used INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS device_user ON device (user, used);
CREATE TABLE IF NOT EXISTS retired (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS owner (user INTEGER PRIMARY KEY REFERENCES user ON DELETE CASCADE, id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS removal (
	number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, owner TEXT NOT NULL, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ending (
	removal INTEGER NOT NULL, host TEXT NOT NULL, ended TEXT NOT NULL, PRIMARY KEY (removal, host));
CREATE TABLE IF NOT EXISTS heir (removal INTEGER PRIMARY KEY, owner TEXT NOT NULL);`

// ownerID is what things of a user belong to: its name, unless that has been
// another user's. Things of users who were there before there were ids belong to
// their names.
const ownerID = "coalesce((SELECT owner.id FROM owner WHERE owner.user = user.number), '')"

// store is the SQLite file. It opens itself when there is something to read
// or to write.
type store struct{ file sqlfile.File }

func newStore(path string) *store {
	return &store{
		sqlfile.File{
			Path:        path,
			Schema:      schema,
			Version:     1,
			Additions:   additions,
			ForeignKeys: true,
			Journal:     4 << 20,
			Secret:      true,
		},
	}
}

var errClosed = errors.New("the users' file is closed")

// reader gives the connections for reading, nil when there is no file yet.
func (s *store) reader() (*sql.DB, error) {
	db, err := s.file.Reader()
	return db, opening(err)
}

func (s *store) writer() (*sql.DB, error) {
	db, err := s.file.DB()
	return db, opening(err)
}

// opening adds to an error what failed.
func opening(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlfile.ErrClosed):
		return errClosed
	}
	return fmt.Errorf("the file of users: %w; if it is damaged, restore it (gatehouse backup restore)", err)
}

// changeInTx runs f in a transaction that is on disk when change returns.
func (s *store) changeInTx(ctx context.Context, f func(*sql.Tx) error) error {
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

func (s *store) closeFile() error { return s.file.Close() }

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
