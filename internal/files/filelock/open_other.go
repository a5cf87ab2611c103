//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package filelock

import (
	"errors"
	"os"
)

// TryOpen returns an error, because an open file cannot be locked on this system.
func TryOpen(*os.File, Mode) error { return errors.ErrUnsupported }
