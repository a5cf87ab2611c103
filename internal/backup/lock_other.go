//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly || windows)

package backup

import (
	"errors"
	"os"
)

func flock(*os.File, bool) (bool, error) {
	return false, errors.New("files cannot be locked on this system")
}
