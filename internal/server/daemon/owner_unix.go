//go:build unix

package daemon

import (
	"io/fs"
	"os"
	"syscall"
)

// owned reports whether a file belongs to this user.
func owned(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(st.Uid) == int64(os.Getuid())
}

// exposed reports whether other users can create files in a folder.
func exposed(info fs.FileInfo) bool { return info.Mode().Perm()&0o022 != 0 }
