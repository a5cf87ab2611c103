//go:build unix

package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

func (g *group) prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithHost(cmd.SysProcAttr)
}

func (g *group) start(cmd *exec.Cmd, pid int) error {
	g.cmd, g.pid = cmd, pid
	return nil
}

// requestEnd requests the end. A group that is suspended must go on to hear it.
func (g *group) requestEnd() {
	syscall.Kill(-g.pid, syscall.SIGTERM)
	syscall.Kill(-g.pid, syscall.SIGCONT)
}

// hangUp says that the terminal is gone: a shell that talks to a person does not
// end for less.
func (g *group) hangUp() { syscall.Kill(-g.pid, syscall.SIGHUP) }

func (g *group) kill() { syscall.Kill(-g.pid, syscall.SIGKILL) }

// close waits a moment for what was killed to be gone, so that the caller
// finds nothing of it at work. Zombies that are not reaped do not delay it
// for long, and asking with signal 0 does no harm to a process that has the number by now.
func (g *group) close() {
	for range 100 {
		if syscall.Kill(-g.pid, 0) == syscall.ESRCH {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Signal sends a signal to the child's group, and to none once the child has
// ended and the number may be another's.
func (p *Process) Signal(s syscall.Signal) (err error) {
	p.signal(func() { err = syscall.Kill(-p.group.pid, s) })
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func signalOf(ps *os.ProcessState) string {
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal().String()
	}
	return ""
}

func isPipeGone(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
