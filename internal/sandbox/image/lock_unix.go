//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// flock takes a lock of the kernel's, which ends with the file that is open.
func flock(f *os.File, alone bool) (ok bool, err error) {
	how := unix.LOCK_SH
	if alone {
		how = unix.LOCK_EX
	}
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err {
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		case nil:
			return true, nil
		default:
			return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// syncFolder sees that the names in a folder are on disk.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
