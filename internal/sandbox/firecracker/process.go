//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse/internal/exec/procid"
)

// process is Firecracker, or the shell around it. It ends with the host.
type process struct {
	p      *os.Process
	jailed bool
	ended  chan struct{} // closed when all of it has ended
	output tail          // the machine's console and Firecracker's messages
}

// A jailed process changes its user, which clears PR_SET_PDEATHSIG. So it is started by a shell that is the
// first process of a PID namespace: the kernel kills the shell when the host ends, and with it all processes
// of the namespace.
var initShell = []string{"/bin/sh", "-c", `"$@"; exit $?`, "keeper"}

// processGroup is the control group that a process starts in, a *cgroup.Group.
type processGroup interface {
	OpenV2() (*os.File, error)
	Enter() error
	Leave() error
}

// startProcess starts the process in a control group, with dir as its working directory.
func startProcess(command []string, dir string, jailed bool, group processGroup) (*process, error) {
	v := &process{jailed: jailed, ended: make(chan struct{})}
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if jailed {
		command = append(append([]string{}, initShell...), command...)
		attr.Cloneflags = unix.CLONE_NEWPID
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// The kernel kills what this thread started when the thread exits, so it waits.
		runtime.LockOSThread()
		err := v.startIn(command, dir, attr, write, group)
		write.Close()
		started <- err
		if err == nil {
			v.p.Wait()
			close(v.ended)
		}
	}()
	if err := <-started; err != nil {
		read.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() {
		defer read.Close()
		io.Copy(&v.output, read)
	}()
	return v, nil
}

// startIn runs on the thread that the process ends with.
func (v *process) startIn(command []string, dir string, attr *syscall.SysProcAttr, out *os.File,
	group processGroup) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	born, err := group.OpenV2()
	if err != nil {
		return err
	}
	if born != nil {
		defer born.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(born.Fd())
	}
	if err := group.Enter(); err != nil {
		return err
	}
	p, err := os.StartProcess(command[0], command, &os.ProcAttr{
		Dir:   dir,
		Env:   environment,
		Files: []*os.File{null, out, out},
		Sys:   attr,
	})
	if left := group.Leave(); left != nil {
		if err == nil {
			p.Kill()
			p.Wait()
		}
		return errors.Join(err, left)
	}
	v.p = p
	return err
}

// killVMM kills all of the process and waits for its end.
func (v *process) killVMM() {
	v.p.Kill()
	<-v.ended
}

// withOutput adds to an error the end of the process's output, and that it ended, if it did.
func (v *process) withOutput(err error) error {
	select {
	case <-v.ended:
		err = fmt.Errorf("%w: firecracker exited", err)
	case <-time.After(exitWait):
	}
	if said := v.output.lines(8); said != "" {
		return fmt.Errorf("%w; it printed last: %s", err, said)
	}
	return err
}

// exitWait is how long a failed process may take to exit, before its error is reported.
const exitWait = 200 * time.Millisecond

// pid returns the id of Firecracker itself.
func (v *process) pid() (int, error) {
	if !v.jailed {
		return v.p.Pid, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", v.p.Pid, v.p.Pid))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 {
		return 0, errors.New("firecracker is not a child of the shell that started it")
	}
	return pid, nil
}

// freeze stops all threads, including the machine's processors, and returns when they are stopped.
func (v *process) freeze(ctx context.Context) error {
	pid, err := v.pid()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("kill(%d, SIGSTOP): %w", pid, err)
	}
	for state := byte(0); state != 'T'; {
		if state, err = stateOf(pid); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), v.thaw())
		case <-v.ended:
			return errors.New("firecracker exited")
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// thaw continues the process.
func (v *process) thaw() error {
	pid, err := v.pid()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		return fmt.Errorf("kill(%d, SIGCONT): %w", pid, err)
	}
	return nil
}

// stateOf returns the kernel's letter for the state of a process.
func stateOf(pid int) (byte, error) {
	stat, err := procid.ReadStat(pid)
	if err != nil {
		return 0, err
	}
	if len(stat) == 0 {
		return 0, fmt.Errorf("/proc/%d/stat does not contain the state of the process", pid)
	}
	return stat[0][0], nil
}

// hasShell reports whether the shell for jailed processes exists.
func hasShell() bool {
	_, err := exec.LookPath(initShell[0])
	return err == nil
}
