package sqlfile

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
)

// magic is the beginning of every SQLite file that is not empty.
var magic = []byte("SQLite format 3\x00")

// Is reports whether a file is a SQLite database.
func Is(file io.ReaderAt) bool {
	head := make([]byte, len(magic))
	n, _ := file.ReadAt(head, 0)
	return bytes.Equal(head[:n], magic)
}

// Snapshot writes the current content of a database to a new file that only its user can read, while others use the
// database. It returns an error if to exists. After an error it leaves nothing there.
func Snapshot(ctx context.Context, path, to string) (err error) {
	from, err := Address(path)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", from+"?mode=ro&_busy_timeout=5000")
	if err != nil {
		return fmt.Errorf("snapshot of %s: %w", path, err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := claim(to); err != nil {
		return fmt.Errorf("snapshot of %s: %w", path, err)
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot of %s: %w", path, err), os.Remove(to))
	}
	return nil
}

// claim creates an empty file that only its user can read, for VACUUM.
func claim(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
