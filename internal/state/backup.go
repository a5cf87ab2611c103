package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// Backup writes everything the log holds at this moment to a new file at path, private to its user, while changes
// continue. The file is created completely or not at all; if it exists, the error matches fs.ErrExist.
func (l *FileLog) Backup(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up to %s: %w", path, err)
		}
	}()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fs.ErrExist, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".backup-*") // private, whatever SQLite makes in it
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, done, err := l.beside()
	if err != nil {
		return err
	}
	defer done()
	file := filepath.Join(dir, "state.db")
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", file); err != nil {
		return err
	}
	if err := secure(file); err != nil {
		return err
	}
	if err := os.Rename(file, path); err != nil {
		return err
	}
	return syncFile(filepath.Dir(path))
}

// beside returns a connection that does not delay changes. A log in memory has only one connection.
func (l *FileLog) beside() (db *sql.DB, done func(), err error) {
	if l.file.Path == "" {
		db, err = l.file.DB()
		return db, func() {}, err
	}
	if db, err = openReadOnly(l.file.Path, ""); err != nil {
		return nil, nil, err
	}
	return db, func() { db.Close() }, nil
}

func openReadOnly(path, more string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}
	db, err := sql.Open("sqlite", u.String()+"?mode=ro&_busy_timeout=5000"+more)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// secure makes a new file private and durable.
func secure(path string) error {
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Restore sets every mount to its value at the time of a backup, all of them or none; a mount that is not in the
// backup becomes null. Revisions increase as with any change, so that followers are notified. The backup is read
// completely first, and a damaged one changes nothing.
func (l *FileLog) Restore(ctx context.Context, path string) error {
	saved, err := readBackup(ctx, path)
	if err != nil {
		return fmt.Errorf("restore from %s: %w", path, err)
	}
	err = l.within(ctx, false, func(tx *sql.Tx) error {
		names, err := mountNames(ctx, tx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, known := saved[name]; !known {
				saved[name] = nil
			}
		}
		for _, name := range slices.Sorted(maps.Keys(saved)) {
			if err := restore(ctx, tx, name, saved[name]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("restore from %s: %w", path, err)
	}
	l.wakeFollowers()
	return nil
}

// restore sets a mount to a value, unless it has it already.
func restore(ctx context.Context, tx *sql.Tx, name string, value any) error {
	k, err := findMount(ctx, tx, name)
	if err != nil {
		return err
	}
	// A value that cannot be read any more is replaced, because that is the purpose of a restore.
	if is, err := fold(ctx, tx, name, k); err == nil && k.revision > 0 && equal(is, value) {
		return nil
	}
	b, err := encodeValue(value)
	if err != nil {
		return err
	}
	return writeMount(ctx, tx, name, k.revision+1, b)
}

func mountNames(ctx context.Context, tx *sql.Tx) (names []string, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT name FROM mount ORDER BY name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// readBackup returns the values of all mounts in a backup, which it does not change.
func readBackup(ctx context.Context, path string) (map[string]any, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	db, err := openReadOnly(path, "&immutable=1")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	var found int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return nil, err
	}
	if found != version {
		return nil, fmt.Errorf("it is no backup of this release (format %d, expected %d)", found, version)
	}
	var health string
	if err := tx.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&health); err != nil {
		return nil, err
	}
	if health != "ok" {
		return nil, fmt.Errorf("it is damaged: %s", health)
	}
	names, err := mountNames(ctx, tx)
	if err != nil {
		return nil, err
	}
	values := make(map[string]any, len(names))
	for _, name := range names {
		k, err := findMount(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		if values[name], err = fold(ctx, tx, name, k); err != nil {
			return nil, err
		}
	}
	return values, nil
}
