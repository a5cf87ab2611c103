package filelock

import "io/fs"

// OfAnother returns false, because files on Windows have no owner in the sense of Unix.
func OfAnother(fs.FileInfo) bool { return false }
