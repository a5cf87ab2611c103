//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package roots

import (
	"os"
	"syscall"
)

// claim takes a file for this process as long as it has it open, and fails when
// another one has. The system lets go of what a killed process had.
func claim(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) })
	if cerr != nil {
		return cerr
	}
	return err
}
