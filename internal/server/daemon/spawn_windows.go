package daemon

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// alone keeps a child from the console of its parent.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		HideWindow:    true,
		CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS,
	}
}

func clearFile(f *os.File) error { return f.Close() }

// terminate ends a process at once: one without a console cannot be asked.
func terminate(p *os.Process) error { return p.Kill() }
