//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package proc

import (
	"os"
	"syscall"
)

// Claim takes an open file for this process, until it is closed, and fails at
// once when somebody else has it. The system lets go of what a killed process
// had. It is an understanding between those who ask, and stops nobody else.
func Claim(f *os.File) error {
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
