package sandbox

import (
	"io/fs"
	"syscall"
)

// OwnerOf returns the user and group of a file.
func OwnerOf(info fs.FileInfo) *Owner {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return &Owner{UID: st.Uid, GID: st.Gid}
}
