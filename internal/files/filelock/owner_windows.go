package filelock

import "io/fs"

// OfAnother reports whether a file belongs to another user. Where files have no
// owner as Unix knows it, none does.
func OfAnother(fs.FileInfo) bool { return false }
