//go:build !linux

package sandbox

import "io/fs"

// OwnerOf returns nil: programs see views of folders on Linux alone.
func OwnerOf(fs.FileInfo) *Owner { return nil }
