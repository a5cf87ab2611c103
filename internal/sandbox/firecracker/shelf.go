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
// without being copied. Whatever user a jail has may read them.
type shelf struct {
	dir string

	mu   sync.Mutex
	have map[edition]string
}

// edition is a file as it was at a time.
type edition struct {
	path     string
	size     int64
	modified time.Time
}

// put gives the path of a file on the shelf.
func (s *shelf) put(from string) (string, error) {
	info, err := os.Stat(from)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", from)
	}
	e := edition{from, info.Size(), info.ModTime()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.have[e]; at != "" {
		return at, nil
	}
	at := filepath.Join(s.dir, strconv.Itoa(len(s.have)))
	if info.Mode()&0o004 == 0 || os.Link(from, at) != nil {
		if err := duplicate(from, at); err != nil {
			return "", err
		}
	}
	if s.have == nil {
		s.have = map[edition]string{}
	}
	s.have[e] = at
	return at, nil
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
