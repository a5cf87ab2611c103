//go:build unix

package clientconfig

import (
	"io/fs"
	"os"
	"syscall"
)

// foreignOwner reports whether a file belongs to another user. A file that
// replaces it would belong to this one.
func foreignOwner(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) != os.Geteuid()
}
