package daemon

import "io/fs"

// On Windows a user's own folders are closed to others by what they inherit.

func owned(fs.FileInfo) bool   { return true }
func exposed(fs.FileInfo) bool { return false }
