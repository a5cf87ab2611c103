//go:build unix

package filelock

import (
	"io/fs"
	"os"
	"syscall"
)

// OfAnother reports whether a file belongs to another user. It returns false if the file system has no owners.
func OfAnother(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) != os.Geteuid()
}
