//go:build linux && (amd64 || arm64)

package supervisor

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is the kernel's struct seccomp_notif.
type notification struct {
	ID    uint64
	PID   uint32 // a thread
	Flags uint32
	Call  int32
	Arch  uint32
	At    uint64
	Args  [6]uint64
}

// response is the kernel's struct seccomp_notif_resp.
type response struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

const (
	syncWakeUp  = 1 << 0 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: both ends take turns, so they stay on one processor
	continueTo  = 1 << 0 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
	eventExec   = 4      // PTRACE_EVENT_EXEC
	exitKill    = unix.PTRACE_O_EXITKILL
	traceExec   = unix.PTRACE_O_TRACEEXEC
	onlyEmpty   = unix.AT_EMPTY_PATH
	cannotWatch = "the process cannot be watched: it is traced by another one, or closed to others (PR_SET_DUMPABLE)"
)

func setFlags(listener int) {
	unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, syncWakeUp) // Linux 6.6
}

// answer handles one report of the kernel.
func (s *supervisor) answer() {
	var n notification
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), unix.SECCOMP_IOCTL_NOTIF_RECV,
		uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return // the caller was killed meanwhile
	}
	tid := int(n.PID)
	if s.first == 0 {
		// The first program was named by the host. Its process still shares our memory, which it has not changed.
		s.first = tid
		s.reply(response{ID: n.ID, Flags: continueTo})
		return
	}
	parent := s.parentOf(tid)
	if why := s.refuseEarly(&n, parent); why != nil {
		s.sendMessage(message{Program: why})
		s.reply(response{ID: n.ID, Error: -int32(unix.EACCES)})
		return
	}
	if err := seize(tid); err != nil {
		s.sendMessage(message{Program: &Program{PID: tid, Parent: parent.name, Refused: cannotWatch}})
		s.reply(response{ID: n.ID, Error: -int32(unix.EACCES)})
		return
	}
	// A call that fails returns to the program, and stops there because of this.
	unix.PtraceInterrupt(tid)
	if !s.isValid(n.ID) || s.reply(response{ID: n.ID, Flags: continueTo}) != nil {
		// The caller was killed; another thread may have its number. It stops in any case.
	}
	s.awaitTracee(tid, parent)
}

func (s *supervisor) reply(r response) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), unix.SECCOMP_IOCTL_NOTIF_SEND,
		uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

// isValid reports whether the caller still waits for the answer.
func (s *supervisor) isValid(id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID,
		uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// seize attaches to a thread. If this process ends, the kernel kills the thread.
func seize(tid int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, exitKill|traceExec, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func detach(pid int, sig unix.Signal) {
	unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(sig), 0, 0)
}

// awaitTracee waits until the attached thread has loaded a program or failed to, and detaches from
// it. No other thread is attached meanwhile.
func (s *supervisor) awaitTracee(tid int, parent caller) {
	leader := leaderOf(tid) // a thread that loads a program becomes the leader of its process
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WALL, &usage)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return
		}
		if !status.Stopped() {
			s.ended(pid, status, &usage)
			if pid == tid || pid == leader {
				return
			}
			continue
		}
		if int(status)>>16 == eventExec {
			if s.judge(pid, parent) {
				detach(pid, 0)
				return
			}
			unix.Kill(pid, unix.SIGKILL)
			leader = pid
			continue // to its end
		}
		// The call has failed. A call that the kernel repeats is reported again.
		sig := status.StopSignal()
		if int(status)>>16 != 0 {
			sig = 0
		}
		detach(pid, sig)
		if pid == tid || pid == leader {
			return
		}
	}
}
