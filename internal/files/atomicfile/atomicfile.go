// Package atomicfile keeps small files that only their user may read and
// that several processes share: written whole or not at all, changed by one
// writer at a time.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// ErrExposed is part of the error for a file that others can read.
var ErrExposed = errors.New("can be read by others")

// Read returns what a file holds, at most limit bytes. It refuses a file that
// others can read and whatever is no regular file. The errors never repeat
// what was read.
func Read(path string, limit int64) ([]byte, error) {
	b, _, err := ReadState(path, limit)
	return b, err
}

// ReadState is Read with what the file was when it was read.
func ReadState(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	// Windows keeps rights elsewhere; the mode says nothing there.
	if m := info.Mode().Perm(); m&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, nil, fmt.Errorf(
			"%s %w (mode %04o): run chmod 600 %s, or remove it if someone may have read it",
			path,
			ErrExposed,
			m,
			path,
		)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, nil, fmt.Errorf("%s is longer than %d bytes", path, limit)
	}
	return b, info, err
}

// Write replaces a file, or makes it with the folders above it (mode 0700).
// Readers see the old content or the new one, also after a power cut. The
// file's mode is 0600.
func Write(path string, content []byte) error {
	tmp, err := stage(path, content)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	SyncFolder(filepath.Dir(path)) // the file is in place already
	return nil
}

// ReplaceSuffix is behind the name of a file in those of the files that Replace
// writes first, as a pattern. One that is left was left by a crash.
const ReplaceSuffix = ".gatehouse-*.tmp"

// Replace is Write for a file of another program, which keeps its mode: mode is
// that of the old file, or of a new one. unchanged is called as the last step
// before the new content takes the old one's place; its error stops that.
func Replace(path string, content []byte, mode fs.FileMode, unchanged func() error) error {
	tmp, err := stageAs(path, filepath.Base(path)+ReplaceSuffix, content)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := os.Chmod(tmp, mode.Perm()); err != nil {
		return err
	}
	if err := unchanged(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	SyncFolder(filepath.Dir(path)) // the file is in place already
	return nil
}

// Create is Write for a file that must not be there yet; the error is
// fs.ErrExist when it is.
func Create(path string, content []byte) error {
	tmp, err := stage(path, content)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	// A link, unlike a rename, never replaces what is there.
	if err := os.Link(tmp, path); err != nil {
		return err
	}
	SyncFolder(filepath.Dir(path)) // the file is in place already
	return nil
}

// stage puts content into a new file beside path, which CreateTemp makes with
// mode 0600, and returns its name.
func stage(path string, content []byte) (tmp string, err error) {
	return stageAs(path, filepath.Base(path)+".*.tmp", content)
}

func stageAs(path, pattern string, content []byte) (tmp string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(path), pattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// SyncFolder writes the names in a folder to disk, so that a new or renamed file is found after a power cut. The
// error is that of opening the folder. A failed sync is not an error, because some systems cannot sync a folder.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	d.Sync()
	return d.Close()
}
