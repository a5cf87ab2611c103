//go:build !linux

package image

import (
	"io/fs"
	"os"
	"path/filepath"
)

// syncTree writes a folder to disk.
func syncTree(path string) error {
	return filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() && !e.IsDir() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if e.IsDir() {
			return nil
		}
		return f.Sync()
	})
}
