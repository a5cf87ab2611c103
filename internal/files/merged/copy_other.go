//go:build !linux

package merged

import (
	"io"
	"io/fs"
	"os"
	"runtime"
)

// CopyContent copies a file.
func CopyContent(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(to, 0), io.NewSectionReader(from, 0, info.Size()))
	return err
}

// describe gives a file or folder the mode of another.
func describe(to, _ *os.File, info fs.FileInfo) error {
	if runtime.GOOS == "windows" && info.IsDir() {
		return nil // it has no mode of its own
	}
	return to.Chmod(info.Mode())
}
