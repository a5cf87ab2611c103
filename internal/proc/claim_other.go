//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package proc

import (
	"errors"
	"os"
)

// Claim fails: whether another process has a file cannot be told here.
func Claim(*os.File) error { return errors.ErrUnsupported }
