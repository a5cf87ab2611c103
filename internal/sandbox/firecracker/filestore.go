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

// fileStore holds files that machines read, so that each can be linked into a jail without being copied. All
// users may read them. Files without holders are removed when space is needed.
type fileStore struct {
	dir      string
	makeRoom func(bytes int64) error // makes space for so many bytes, or fails

	putting sync.Mutex // serializes put, because each may need the space; guards next; locked before mu
	mu      sync.Mutex // guards files; not held while files are copied
	files   map[edition]*storedFile
	next    int // name of the next file
}

// edition identifies a file and its content.
type edition struct {
	path     string
	size     int64
	modified time.Time
}

// storedFile is a file in the store.
type storedFile struct {
	path  string
	users int // number of holders
	used  time.Time
}

// storeFile returns the path of a copy of a file in the store, which the caller holds.
func (s *fileStore) storeFile(from string) (string, error) {
	info, err := os.Stat(from)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", from)
	}
	s.putting.Lock()
	defer s.putting.Unlock()
	e := edition{from, info.Size(), info.ModTime()}
	if at := s.findFile(e); at != "" {
		return at, nil
	}
	at := filepath.Join(s.dir, strconv.Itoa(s.next))
	s.next++
	if info.Mode()&0o004 == 0 || os.Link(from, at) != nil {
		if err := s.makeRoom(info.Size()); err != nil {
			return "", fmt.Errorf("a copy of %s for jails: %w", filepath.Base(from), err)
		}
		if err := duplicate(from, at); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		s.files = map[edition]*storedFile{}
	}
	s.files[e] = &storedFile{path: at, users: 1, used: time.Now()}
	return at, nil
}

// findFile holds a stored edition and returns its path, or "".
func (s *fileStore) findFile(e edition) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.files[e]; one != nil {
		one.users++
		return one.path
	}
	return ""
}

// hold adds a holder to paths that are held already; release removes one.
func (s *fileStore) hold(paths []string) { s.countUses(paths, 1) }

func (s *fileStore) releaseFiles(paths []string) { s.countUses(paths, -1) }

func (s *fileStore) countUses(paths []string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.files {
		for _, path := range paths {
			if one.path == path {
				one.users += by
				one.used = time.Now()
			}
		}
	}
}

// drop removes the least recently used file without holders, and reports whether there was one.
func (s *fileStore) drop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest edition
	found := false
	for e, one := range s.files {
		if one.users == 0 && (!found || one.used.Before(s.files[oldest].used)) {
			oldest, found = e, true
		}
	}
	if !found {
		return false
	}
	at := s.files[oldest].path
	delete(s.files, oldest)
	return os.Remove(at) == nil
}

// duplicate copies a file, by sharing its blocks if the file system supports that.
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
