// Package atomicfile reads and writes small files that several processes share and only their user may read. A file
// is written completely or not at all, and changed by one writer at a time.
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

// ErrExposed is part of the error for a file that other users can read.
var ErrExposed = errors.New("can be read by others")

// Read returns the content of a file of at most limit bytes. It returns an error if other users can read the file,
// or if it is not a regular file. Errors never contain the content.
func Read(path string, limit int64) ([]byte, error) {
	b, _, err := ReadState(path, limit)
	return b, err
}

// ReadState is Read, and also returns the file's info at the time of reading.
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
	// Windows stores permissions elsewhere, so the mode means nothing there.
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

// Write replaces a file, or creates it and the folders above it (mode 0700). Readers see the old content or the new
// one, also after a power failure. The file's mode is 0600.
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

// ReplaceSuffix is a pattern for the end of the names of the temporary files that Replace writes. Such a file that
// remains was left by a crash.
const ReplaceSuffix = ".gatehouse-*.tmp"

// Replace is Write for a file of another program. The file gets the given mode, which is that of the old file or
// the one for a new file. unchanged is called immediately before the rename; if it returns an error, the old file
// stays.
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

// Create is Write for a file that must not exist yet; the error is fs.ErrExist if it does.
func Create(path string, content []byte) error {
	tmp, err := stage(path, content)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	// A link, unlike a rename, never replaces an existing file.
	if err := os.Link(tmp, path); err != nil {
		return err
	}
	SyncFolder(filepath.Dir(path)) // the file is in place already
	return nil
}

// stage writes content to a new file in the folder of path, which CreateTemp creates with mode 0600, and returns
// its name.
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
