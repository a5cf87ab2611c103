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

// requestEnd requests the end of the group. A suspended group must be resumed to receive the signal.
func (g *group) requestEnd() {
	syscall.Kill(-g.pid, syscall.SIGTERM)
	syscall.Kill(-g.pid, syscall.SIGCONT)
}

// hangUp sends SIGHUP, because an interactive shell ignores weaker requests to end.
func (g *group) hangUp() { syscall.Kill(-g.pid, syscall.SIGHUP) }

func (g *group) kill() { syscall.Kill(-g.pid, syscall.SIGKILL) }

// close waits a moment for the killed processes to end, so that none of them still runs when the caller
// continues. Zombies that are not reaped do not delay it for long, and probing with signal 0 does not
// affect a process that has reused the number.
func (g *group) close() {
	for range 100 {
		if syscall.Kill(-g.pid, 0) == syscall.ESRCH {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Signal sends a signal to the child's group. It sends none after the child has ended, because the
// number may have been reused.
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
