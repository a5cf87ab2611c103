package sqlfile

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	sqlite "modernc.org/sqlite"
)

// frozen is a database file on a disk that is full or read-only. SQLite cannot open it normally, because its
// journal needs files in the same folder. It is read as it is, and cannot change meanwhile.
type frozen struct {
	db    *sql.DB
	at    time.Time // when opening it for writing last failed
	cause error     // why
	copy  string    // folder with a copy of the file and its journal; "" where the file itself is read
}

const (
	tryAgain      = time.Second // between attempts to open a frozen file for writing
	changesFrozen = -1          // different from every number that SQLite counts, so that a thaw is seen as a change
)

// Frozen returns the reason for which the file is read as it was and cannot be written. It returns nil if the file
// can be written, or was not used yet.
func (f *File) Frozen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen == nil {
		return nil
	}
	return f.frozen.cause
}

// readFrozen opens a file for reading that could not be opened for writing because of cause, if the disk is the
// reason. mu must be held.
func (f *File) readFrozen(cause error) (*sql.DB, error) {
	if f.closed || f.Path == "" || !isUnwritable(cause) {
		return nil, cause
	}
	if z := f.frozen; z != nil {
		if cause != z.cause {
			z.at, z.cause = time.Now(), cause
		}
		return z.db, nil
	}
	z := &frozen{at: time.Now(), cause: cause}
	if err := f.openFrozen(z); err != nil {
		z.unfreeze()
		return nil, fmt.Errorf("%w; and it cannot be read without writing: %w", cause, err)
	}
	f.frozen = z
	return z.db, nil
}

func (f *File) openFrozen(z *frozen) error {
	info, err := os.Stat(f.Path)
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return errors.New("it is empty")
	}
	if m := info.Mode().Perm(); f.Secret && m&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("it can be read by others (mode %04o)", m)
	}
	from, how := f.Path, "&mode=ro&immutable=1"
	if journal, err := os.Stat(f.Path + "-wal"); err == nil && journal.Size() > 0 || f.Additions != "" {
		// A host that was killed left its last changes in the journal, which SQLite would ignore or want to write.
		// A copy is read instead. A file of an older program may also lack additions.
		if z.copy, err = copyAway(f.Path); err != nil {
			return err
		}
		from, how = filepath.Join(z.copy, filepath.Base(f.Path)), "&_query_only=1"
		if err := f.addTo(from); err != nil {
			return err
		}
	}
	name, err := Address(from)
	if err != nil {
		return err
	}
	if z.db, err = sql.Open("sqlite", name+"?_busy_timeout=5000&_dqs=0"+how); err != nil {
		return err
	}
	z.db.SetMaxOpenConns(readers)
	var version int
	if err := z.db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version != f.Version {
		return fmt.Errorf("it has format %d and this program knows %d", version, f.Version)
	}
	return nil
}

// addTo adds the additions of later versions to a copy.
func (f *File) addTo(path string) error {
	if f.Additions == "" {
		return nil
	}
	name, err := Address(path)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return err
	}
	_, err = db.Exec(f.Additions)
	return errors.Join(err, db.Close())
}

// copyAway copies a file and its journal to a folder that only this user can read, or to memory if the temporary
// folder is full.
func copyAway(path string) (dir string, err error) {
	for _, place := range []string{"", "/dev/shm"} {
		if dir, err = os.MkdirTemp(place, "gatehouse-frozen-*"); err != nil {
			continue
		}
		to := filepath.Join(dir, filepath.Base(path))
		journal := copyFile(path+"-wal", to+"-wal")
		if errors.Is(journal, os.ErrNotExist) {
			journal = nil // the host that wrote it stopped in order
		}
		if err = errors.Join(copyFile(path, to), journal); err == nil {
			return dir, nil
		}
		os.RemoveAll(dir)
	}
	return "", err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// thaw closes what was read while the file could not be written. mu must be held.
func (f *File) thaw() error {
	z := f.frozen
	f.frozen = nil
	if z == nil {
		return nil
	}
	return z.unfreeze()
}

func (z *frozen) unfreeze() (err error) {
	if z.db != nil {
		err = z.db.Close()
	}
	if z.copy != "" {
		err = errors.Join(err, os.RemoveAll(z.copy))
	}
	return err
}

// isUnwritable reports whether an error means that a file or its folder cannot be written: a full disk, a quota, or
// a read-only file system or folder.
func isUnwritable(err error) bool {
	for _, no := range []error{syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, os.ErrPermission} {
		if errors.Is(err, no) {
			return true
		}
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() & 0xff {
	case 8, 10, 13, 14: // SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN
		return true
	}
	return false
}
