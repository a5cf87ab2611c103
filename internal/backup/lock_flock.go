//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package backup

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func flock(f *os.File, alone bool) (got bool, err error) {
	how := unix.LOCK_SH
	if alone {
		how = unix.LOCK_EX
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
