package daemon

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// alone detaches a child from the console of its parent.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		HideWindow:    true,
		CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS,
	}
}

func clearFile(f *os.File) error { return f.Close() }

// terminate kills a process, because a process without a console cannot be asked to end.
func terminate(p *os.Process) error { return p.Kill() }
