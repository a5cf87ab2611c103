package sqlfile

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

const numbers = "CREATE TABLE number (n INTEGER PRIMARY KEY)"

func file(t *testing.T, path string) *File {
	t.Helper()
	f := &File{Path: path, Schema: numbers, Version: 3}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func put(t *testing.T, f *File, n int) error {
	t.Helper()
	db, err := f.DB()
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec("INSERT INTO number VALUES (?)", n)
	return err
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM number").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Where there is nothing yet, reading makes nothing.
func TestReadingMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "n.db")
	for _, f := range []*File{file(t, path), file(t, "")} {
		if db, err := f.Reader(); db != nil || err != nil || f.Exists() {
			t.Errorf("%q: %v, %v, there %v", f.Path, db, err, f.Exists())
		}
		if v, err := f.Changes(t.Context()); v != 0 || err != nil {
			t.Errorf("%q has changed: %d, %v", f.Path, v, err)
		}
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("a folder was made")
	}
}

func TestReadersOnlyRead(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "a ?#%.db"), ""} {
		f := file(t, path)
		if err := put(t, f, 1); err != nil {
			t.Fatal(err)
		}
		if err := put(t, f, 1); !IsTaken(err) {
			t.Errorf("the same again: %v", err)
		}
		db, err := f.Reader()
		if err != nil || count(t, db) != 1 {
			t.Fatalf("%q: %d lines, %v", path, count(t, db), err)
		}
		if path == "" {
			continue // it is the connection that writes
		}
		if _, err := db.Exec("INSERT INTO number VALUES (2)"); err == nil {
			t.Error("a reader has written")
		}
		if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
}

// The number changes with a commit of any process, and only then.
func TestChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	ours, theirs := file(t, path), file(t, path)
	last := int64(0)
	for n, f := range []*File{ours, theirs, ours} {
		if err := put(t, f, n); err != nil {
			t.Fatal(err)
		}
		v, err := ours.Changes(t.Context())
		if err != nil || v == last {
			t.Errorf("after change %d: %d, %v", n, v, err)
		}
		if again, err := ours.Changes(t.Context()); again != v || err != nil {
			t.Errorf("without a change: %d, then %d, %v", v, again, err)
		}
		last = v
	}
}

func TestManyMakeAFileTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	var all sync.WaitGroup
	for n := range 8 {
		f := file(t, path)
		all.Go(func() {
			if err := put(t, f, n); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	db, err := file(t, path).Reader()
	if err != nil || count(t, db) != 8 {
		t.Errorf("%d lines, %v", count(t, db), err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	if err := put(t, file(t, path), 1); err != nil {
		t.Fatal(err)
	}
	newer := &File{Path: path, Schema: numbers, Version: 2}
	if _, err := newer.DB(); err == nil || !strings.Contains(err.Error(), "it has format 3 and this program knows 2") {
		t.Errorf("of another program: %v", err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
		secret := &File{Path: path, Schema: numbers, Version: 3, Secret: true}
		if _, err := secret.DB(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("readable by others: %v", err)
		}
	}
	f := &File{Schema: numbers, Version: 1}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, open := range []func() (*sql.DB, error){f.DB, f.Reader} {
		if _, err := open(); err != ErrClosed {
			t.Errorf("closed: %v", err)
		}
	}
}

func TestANewFileHasThePagesThatWereAskedFor(t *testing.T) {
	f := &File{
		Path:    filepath.Join(t.TempDir(), "rows.db"),
		Schema:  "CREATE TABLE row (v BLOB)",
		Version: 1,
		Page:    16 << 10,
	}
	defer f.Close()
	db, err := f.DB()
	if err != nil {
		t.Fatal(err)
	}
	var size int
	var mode string
	if err := errors.Join(db.QueryRow("PRAGMA page_size").Scan(&size),
		db.QueryRow("PRAGMA journal_mode").Scan(&mode)); err != nil ||
		size != 16<<10 ||
		mode != "wal" {
		t.Errorf("pages of %d bytes, journal %s, %v", size, mode, err)
	}
}
