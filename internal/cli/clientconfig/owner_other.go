//go:build !unix

package clientconfig

import "io/fs"

// foreignOwner is false: a new file gets the rights of its folder here.
func foreignOwner(fs.FileInfo) bool { return false }
