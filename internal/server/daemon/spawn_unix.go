//go:build unix

package daemon

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// alone starts a child in a session of its own, so that no terminal ends it.
func alone(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// clearFile replaces a file by /dev/null, so that later output to its descriptor
// is discarded.
func clearFile(f *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return unix.Dup2(int(null.Fd()), int(f.Fd()))
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
