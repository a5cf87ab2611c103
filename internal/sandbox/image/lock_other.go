//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package image

import (
	"errors"
	"fmt"
	"os"
)

func flock(*os.File, bool) (bool, error) {
	return false, fmt.Errorf("images are not unpacked on this system: %w", errors.ErrUnsupported)
}

func syncFolder(string) error { return nil }
