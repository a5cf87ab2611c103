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

// Numbers of users are never reused, so that the data of a removed user cannot pass to a new user of
// the same name. Times are in milliseconds, 0 means never. The table ended holds the revocations for
// other processes.
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

// additions are later tables, which files of earlier versions get when they are opened. A device is a
// browser in which a user has logged in. Retired are the removed users; an owner is the ID of a user
// whose name was used before. A removal names a user whose data hosts must end. An ending is the report
// of one host about it: a JSON array of texts or, if the host handed something over, an object of two
// arrays, or "" while the host is still working. An heir is the owner that receives the data of a
// removed user. A code opens one login of a user, or of the host's own user, whose number is 0.
// Unattended are the tokens of programs that no person is beside.
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
CREATE TABLE IF NOT EXISTS code (
	hash BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, user INTEGER NOT NULL, kind TEXT NOT NULL, lasting INTEGER NOT NULL,
	browser BLOB, until INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS heir (removal INTEGER PRIMARY KEY, owner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS unattended (token TEXT PRIMARY KEY REFERENCES token ON DELETE CASCADE);`

// isUnattended selects whether a token was made for a program that no person is beside.
const isUnattended = "EXISTS (SELECT 1 FROM unattended WHERE unattended.token = token.id)"

// ownerID selects the ID that owns a user's data: the name, unless another user had that name before.
// The data of users created before IDs existed belongs to their names.
const ownerID = "coalesce((SELECT owner.id FROM owner WHERE owner.user = user.number), '')"

// store is the SQLite file, which is opened at the first read or write.
type store struct {
	file       sqlfile.File
	replicated bool // all nodes of a cluster have it
}

func newStore(path string) *store {
	return &store{
		file: sqlfile.File{
			Path:        path,
			Schema:      schema,
			Version:     1,
			Additions:   additions + authTables + passkeyTable,
			ForeignKeys: true,
			Journal:     4 << 20,
			Secret:      true,
		},
	}
}

var errClosed = errors.New("the users' file is closed")

// reader returns the connections for reading, nil if the file does not exist yet.
func (s *store) reader() (*sql.DB, error) {
	db, err := s.file.Reader()
	return db, opening(err)
}

func (s *store) writer() (*sql.DB, error) {
	db, err := s.file.DB()
	return db, opening(err)
}

// opening adds to an error that opening the file failed.
func opening(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlfile.ErrClosed):
		return errClosed
	}
	return fmt.Errorf("the file of users: %w; if it is damaged, restore it (gatehouse backup restore)", err)
}

// changeInTx runs f in a transaction, which is on disk when changeInTx returns.
func (s *store) changeInTx(ctx context.Context, f func(*sql.Tx) error) error {
	if _, err := s.writer(); err != nil {
		return err
	}
	if s.replicated {
		return s.file.Change(ctx, f)
	}
	return s.changeHere(ctx, f)
}

// changeHere is changeInTx for what other nodes of a cluster need not know.
func (s *store) changeHere(ctx context.Context, f func(*sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.file.ChangeHere(ctx, f)
}

func (s *store) closeFile() error { return s.file.Close() }

// stamp and moment convert times to and from the format of the file.
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
