package killtest

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// changing are the calls that change files, and some that come between them.
var changing = map[uint64]bool{
	unix.SYS_OPENAT: true, unix.SYS_WRITE: true, unix.SYS_FSYNC: true, unix.SYS_RENAMEAT: true,
	unix.SYS_RENAMEAT2: true,
	unix.SYS_UNLINKAT:  true, unix.SYS_FCHMODAT: true, unix.SYS_MKDIRAT: true, unix.SYS_FLOCK: true,
	unix.SYS_CLOSE:  true,
	unix.SYS_LINKAT: true, unix.SYS_FTRUNCATE: true,
}

func before(cmd *exec.Cmd, n int) (ended bool, err error) {
	runtime.LockOSThread() // the kernel lets one thread trace a process
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return false, ErrUnsupported
		}
		return false, err
	}
	defer cmd.Process.Release()
	main := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(main, &status, 0, nil); err != nil || !status.Stopped() {
		return false, fmt.Errorf("the program did not stop at its beginning: %v, %w", status, err)
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := errors.Join(unix.PtraceSetOptions(main, options), unix.PtraceSyscall(main, 0)); err != nil {
		return false, err
	}
	for calls := 0; ; {
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case err != nil:
			return false, err
		case pid == main && status.Exited() && status.ExitStatus() == 0:
			return true, nil
		case pid == main && (status.Exited() || status.Signaled()):
			return false, fmt.Errorf("the program ended with %v", status)
		case !status.Stopped():
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if number, entry := entering(pid); entry && changing[number] {
				if calls++; calls == n {
					return false, endAll(main)
				}
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP:
			signal = int(stop)
		}
		unix.PtraceSyscall(pid, signal) // an error means that the thread has just ended
	}
}

// endAll kills the process and waits for all of its threads.
func endAll(main int) error {
	if err := unix.Kill(main, unix.SIGKILL); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err != nil || pid == main && status.Signaled() {
			return err
		}
	}
}

// entering returns the number of the call that a stopped thread is about to make.
func entering(pid int) (number uint64, entry bool) {
	const (
		getSyscallInfo = 0x420e
		entryStop      = 1
	)
	var info struct {
		op     uint8
		_      [3]uint8
		arch   uint32
		ip, sp uint64
		number uint64
		rest   [8]uint64
	}
	to := uintptr(unsafe.Pointer(&info))
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(pid), unsafe.Sizeof(info), to, 0, 0)
	return info.number, e == 0 && info.op == entryStop
}
