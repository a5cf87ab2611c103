package daemon

import "io/fs"

// On Windows the inherited access rights of a user's folders exclude other users.

func owned(fs.FileInfo) bool   { return true }
func exposed(fs.FileInfo) bool { return false }
