package proc

import (
	"os/exec"
	"syscall"
	"unsafe"
)

// group is the process group that a child leads.
type group struct {
	cmd *exec.Cmd
	pid int
}

// dieWithHost makes the kernel kill the child when the thread that started it ends; own keeps that
// thread.
func dieWithHost(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// await waits for the child's end and leaves it a zombie, so that its number, which is also the
// group's, cannot be reused yet.
func (g *group) await() {
	const byPid = 1
	var info [128]byte // siginfo_t
	for {
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, byPid, uintptr(g.cmd.Process.Pid),
			uintptr(unsafe.Pointer(&info)), syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if e != syscall.EINTR {
			return // reap reports any other error
		}
	}
}

// reap collects the zombie.
func (g *group) reap() error { return g.cmd.Wait() }
