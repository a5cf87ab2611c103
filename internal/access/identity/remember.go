package identity

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// knownText is what is in the files that remember that there were users.
const knownText = `There have been users on this host. As long as this file is here, nobody is let in
without credentials, also if the file of users is lost or its disk is not mounted.
`

// remember writes down, apart from the file of users, that there has been a user,
// or finds that it was written down while the file knows of none. Then callers
// are told apart all the same, and none is let in but the host's own user: a file
// that is lost must not open the host to every caller.
func (s *Service) remember(claimed bool) {
	w := &s.watch
	if claimed {
		w.lost.Store(false)
		for _, path := range s.o.Known {
			if err := note(path); err != nil {
				s.log.Warn(
					"if the file of users is lost, it is not noticed: cannot write down that there are users",
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
			"THE FILE OF USERS IS LOST: there were users here, and it is missing or empty. Only this host's own user is let in. "+
				"Mount its disk or restore it (gatehouse backup restore), or add a user (gatehouse user add NAME). "+
				"Only if this host is to be open again, remove what remembers the users too",
			"file",
			s.store.file.Path,
			"remembered",
			strings.Join(marks, ", "),
		)
	}
}

// marks are the files that say that there were users. One that cannot be looked
// at counts as one that is there.
func (s *Service) marks() (found []string) {
	for _, path := range s.o.Known {
		if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			found = append(found, path)
		}
	}
	return found
}

// note writes a mark that is not there.
func note(path string) error {
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

// Lost reports whether there were users here and their file is gone or empty.
func (s *Service) Lost() bool { return s.watch.lost.Load() }

// Degraded returns why users and tokens can be read and not changed; nil when
// they can be changed.
func (s *Service) Degraded() error { return s.store.file.Frozen() }
