package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"gatehouse/internal/files/filelock"
)

// storeFolder, in the folder of packages, holds each file that packages share once.
const storeFolder = ".store"

// StoreFolder returns the path of the files that packages share, below their folder.
// Each of its files is also in the folder of a package.
func StoreFolder(packages string) string { return filepath.Join(packages, storeFolder) }

// tmpPrefix begins the names of files that replace others.
const tmpPrefix = ".gatehouse-share-"

// store keeps the files of programs by the hash of their content, so that packages
// with the same dependencies hold them once. An object is named <hash> or, if it is
// executable, <hash>x, and each program that contains it has a hard link to it.
//
// An object is read-only, and a program with links is readable alone for its server
// (see launch), because a write through one link would change the file of every
// package. A kill between any two steps leaves whole files: a file is replaced by a
// rename, and an object without a program is removed by the next collection. It is
// safe for concurrent use in one process; one process at a time has the packages.
type store struct {
	dir string
	mu  sync.Mutex // held while objects are linked or removed
}

// shared is what a program has in the store.
type shared struct {
	files, bytes int64 // linked
	saved        int64 // bytes of them that another package had already
}

// share replaces the files of a program by links to objects with the same content. A
// file that cannot be linked stays as it is.
func (s *store) share(ctx context.Context, program string) (sum shared, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = filepath.WalkDir(program, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case strings.HasPrefix(d.Name(), tmpPrefix):
			return os.Remove(path) // of a host that was killed
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil || info.Size() == 0 {
			return err
		}
		had, err := s.shareFile(ctx, path, info)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nil // it stays a file of its own
		}
		sum.files++
		sum.bytes += info.Size()
		if had {
			sum.saved += info.Size()
		}
		return nil
	})
	return sum, err
}

// shareFile makes a file a link to its object. had is true if there was an object.
func (s *store) shareFile(ctx context.Context, path string, info fs.FileInfo) (had bool, err error) {
	sum, err := hashFile(ctx, path)
	if err != nil {
		return false, err
	}
	mode := fs.FileMode(0o400)
	if info.Mode()&0o100 != 0 {
		mode, sum = 0o500, sum+"x"
	}
	object := filepath.Join(s.dir, sum[:2], sum)
	if was, err := os.Lstat(object); err == nil {
		if os.SameFile(was, info) {
			return true, nil
		}
		// What another package may have damaged is not handed on.
		if now, err := hashFile(ctx, object); err == nil && strings.TrimSuffix(sum, "x") == now {
			return true, replaceByLink(object, path)
		}
		if err := os.Remove(object); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(object), 0o700); err != nil {
		return false, err
	}
	// A file that has links already, of a program that was copied with them, must not
	// become an object that another name can reach.
	if err := os.Chmod(path, mode); err != nil {
		return false, err
	}
	return false, os.Link(path, object)
}

// replaceByLink makes path a link to an object, in one step.
func replaceByLink(object, path string) error {
	tmp := filepath.Join(filepath.Dir(path), tmpPrefix+filepath.Base(object)[:16])
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(object, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

func hashFile(ctx context.Context, path string) (sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, reading{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// separate makes the files of a program its own again: writable copies.
func (s *store) separate(ctx context.Context, program string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return filepath.WalkDir(program, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if filelock.Links(info) < 2 {
			return nil
		}
		return copyInPlace(ctx, path, info.Mode().Perm()|0o200)
	})
}

func copyInPlace(ctx context.Context, path string, mode fs.FileMode) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(path), tmpPrefix+"*")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, reading{ctx, from})
	err = errors.Join(err, to.Chmod(mode), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to.Name()))
	}
	return err
}

// collect removes the objects that no program has.
func (s *store) collect(ctx context.Context) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || filelock.Links(info) > 1 {
			return err
		}
		freed += info.Size()
		return os.Remove(path)
	})
	return freed, err
}

// usage returns the bytes of a program, and how many of them other packages have too.
func usage(ctx context.Context, program string) (bytes, also int64, err error) {
	type linked struct {
		info  fs.FileInfo
		names uint64 // in this program
	}
	many := map[int64][]*linked{} // by size: files with names beside one here and one in the store
	err = filepath.WalkDir(program, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		bytes += info.Size()
		if filelock.Links(info) <= 2 {
			return nil
		}
		for _, l := range many[info.Size()] {
			if os.SameFile(l.info, info) {
				l.names++
				return nil
			}
		}
		many[info.Size()] = append(many[info.Size()], &linked{info, 1})
		return nil
	})
	for size, all := range many {
		for _, l := range all {
			if filelock.Links(l.info) > l.names+1 {
				also += size * int64(l.names)
			}
		}
	}
	return bytes, also, err
}
