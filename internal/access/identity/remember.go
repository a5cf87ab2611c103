package identity

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// knownText is the content of the marker files.
const knownText = `There have been users on this host. While this file exists, no caller is admitted
without credentials, even if the file of users is lost or its disk is not mounted.
`

// remember writes marker files, outside the folder of the file of users, if a user was ever created. If
// a marker exists but the file has no user, the file was lost: then callers must authenticate, and only
// the host's own user is admitted, because a lost file must not open the host to every caller.
func (s *Service) remember(claimed bool) {
	w := &s.watch
	if claimed {
		w.lost.Store(false)
		for _, path := range s.o.Known {
			if err := createMarker(path); err != nil {
				s.log.Warn(
					"cannot write a marker file: if the file of users is lost, the loss will not be noticed",
					"file",
					path,
					"err",
					err,
				)
			}
		}
		return
	}
	marks := s.marks()
	if len(marks) == 0 {
		w.lost.Store(false)
		return
	}
	if !w.lost.Swap(true) {
		s.log.Error(
			"THE FILE OF USERS IS LOST: this host had users, and the file is missing or empty. "+
				"Only this host's own user is admitted. "+
				"Mount its disk or restore it (gatehouse backup restore), or add a user (gatehouse user add NAME). "+
				"Only if this host must be open again, remove the marker files too",
			"file",
			s.store.file.Path,
			"remembered",
			strings.Join(marks, ", "),
		)
	}
}

// marks returns the marker files that exist. A marker that cannot be checked counts as existing.
func (s *Service) marks() (found []string) {
	for _, path := range s.o.Known {
		if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			found = append(found, path)
		}
	}
	return found
}

// createMarker creates a marker if it does not exist.
func createMarker(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(knownText)
	return errors.Join(err, f.Sync(), f.Close())
}

// Lost reports whether this host had users and their file is missing or empty.
func (s *Service) Lost() bool { return s.watch.lost.Load() }

// Degraded returns why users and tokens can be read but not changed; nil if they can be changed.
func (s *Service) Degraded() error { return s.store.file.Frozen() }
