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

// process is Firecracker, or what it is started by, and ends with the host.
type process struct {
	p      *os.Process
	jailed bool
	ended  chan struct{} // everything of it has
	says   tail          // the console of the machine, and what Firecracker has to say
}

// A jailed one changes its user, by which the kernel forgets that it was to end
// with the host. So it is started by a shell that is the first process of a
// space of process numbers: the shell ends with the host, and the kernel ends
// with it whatever else is in there.
var keeper = []string{"/bin/sh", "-c", `"$@"; exit $?`, "keeper"}

// nursery is what a process is born in, a *cgroup.Group.
type nursery interface {
	Born() (*os.File, error)
	Enter() error
	Leave() error
}

// startProcess starts it in a control group, with dir as its folder.
func startProcess(command []string, dir string, jailed bool, group nursery) (*process, error) {
	v := &process{jailed: jailed, ended: make(chan struct{})}
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if jailed {
		command = append(append([]string{}, keeper...), command...)
		attr.Cloneflags = unix.CLONE_NEWPID
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// The kernel ends what this thread started when it ends, so it waits.
		runtime.LockOSThread()
		err := v.begin(command, dir, attr, write, group)
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
		io.Copy(&v.says, read)
	}()
	return v, nil
}

// begin runs on the thread that the process ends with.
func (v *process) begin(command []string, dir string, attr *syscall.SysProcAttr, out *os.File, group nursery) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	born, err := group.Born()
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
	p, err := os.StartProcess(command[0], command, &os.ProcAttr{Dir: dir, Env: environment, Files: []*os.File{null, out, out}, Sys: attr})
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

// kill ends everything of it and returns when nothing is left.
func (v *process) kill() {
	v.p.Kill()
	<-v.ended
}

// why adds to an error what the process said, and that it ended, if it did.
func (v *process) why(err error) error {
	select {
	case <-v.ended:
		err = fmt.Errorf("%w: firecracker ended", err)
	case <-time.After(dying):
	}
	if said := v.says.lines(8); said != "" {
		return fmt.Errorf("%w; it said last: %s", err, said)
	}
	return err
}

// dying is how long a process that failed may take to end by itself, before it
// is told about.
const dying = 200 * time.Millisecond

// pid is the number of Firecracker itself.
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
		return 0, errors.New("firecracker is not among the processes of its keeper")
	}
	return pid, nil
}

// freeze stops all its threads, the machine's processors among them, and returns
// when they stand.
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
			return errors.New("firecracker ended")
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// thaw lets it go on.
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

// stateOf is the letter that the kernel has for what a process does.
func stateOf(pid int) (byte, error) {
	stat, err := procid.ReadStat(pid)
	if err != nil {
		return 0, err
	}
	if len(stat) == 0 {
		return 0, fmt.Errorf("/proc/%d/stat does not tell what the process does", pid)
	}
	return stat[0][0], nil
}

// hasShell reports whether a jailed process can be kept.
func hasShell() bool {
	_, err := exec.LookPath(keeper[0])
	return err == nil
}
