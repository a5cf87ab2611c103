//go:build unix

package filelock

import (
	"io/fs"
	"syscall"
)

// Links returns the number of names of a file.
func Links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}
