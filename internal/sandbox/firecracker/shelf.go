//go:build linux && (amd64 || arm64)

package firecracker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// shelf has files that machines read, so that each can be shown in a jail
// without being copied. Whatever user a jail has may read them. What nobody
// holds makes room for others.
type shelf struct {
	dir  string
	room func(bytes int64) error // sees to it that so many more may be there

	// putting lets one file at a time be stored, because each may need the space. It guards next,
	// and is taken before mu.
	putting sync.Mutex
	// mu guards have, and is not held while files are copied.
	mu   sync.Mutex
	have map[edition]*shelved
	next int // number of the next
}

// edition is a file as it was at a time.
type edition struct {
	path     string
	size     int64
	modified time.Time
}

// shelved is a file on the shelf.
type shelved struct {
	path  string
	users int // who hold it
	used  time.Time
}

// put gives the path of a file on the shelf, which the caller holds.
func (s *shelf) put(from string) (string, error) {
	info, err := os.Stat(from)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", from)
	}
	s.putting.Lock()
	defer s.putting.Unlock()
	e := edition{from, info.Size(), info.ModTime()}
	if at := s.find(e); at != "" {
		return at, nil
	}
	at := filepath.Join(s.dir, strconv.Itoa(s.next))
	s.next++
	if info.Mode()&0o004 == 0 || os.Link(from, at) != nil {
		if err := s.room(info.Size()); err != nil {
			return "", fmt.Errorf("a copy of %s for jails: %w", filepath.Base(from), err)
		}
		if err := duplicate(from, at); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have == nil {
		s.have = map[edition]*shelved{}
	}
	s.have[e] = &shelved{path: at, users: 1, used: time.Now()}
	return at, nil
}

// find holds an edition that is there.
func (s *shelf) find(e edition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.have[e]; one != nil {
		one.users++
		return one.path
	}
	return ""
}

// hold is for who goes on from what somebody else holds, and give for who needs
// it no more.
func (s *shelf) hold(paths []string) { s.count(paths, 1) }

func (s *shelf) give(paths []string) { s.count(paths, -1) }

func (s *shelf) count(paths []string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.have {
		for _, path := range paths {
			if one.path == path {
				one.users += by
				one.used = time.Now()
			}
		}
	}
}

// drop removes the file that nobody holds for longest, and reports whether there
// was one.
func (s *shelf) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest edition
	found := false
	for e, one := range s.have {
		if one.users == 0 && (!found || one.used.Before(s.have[oldest].used)) {
			oldest, found = e, true
		}
	}
	if !found {
		return false
	}
	at := s.have[oldest].path
	delete(s.have, oldest)
	return os.Remove(at) == nil
}

// duplicate copies a file, by sharing its blocks where the file system can.
func duplicate(from, to string) (err error) {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	if _, err = io.Copy(w, r); err == nil {
		err = w.Chmod(0o444)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}
