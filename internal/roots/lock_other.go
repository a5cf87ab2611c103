//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package roots

import (
	"errors"
	"os"
)

// claim cannot tell here whether another process has a file; so nothing is
// cleared away.
func claim(*os.File) error { return errors.ErrUnsupported }
