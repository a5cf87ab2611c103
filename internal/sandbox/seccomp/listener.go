//go:build linux && (amd64 || arm64)

package seccomp

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Programs returns the filter that reports each start of a program to a listener, for lines whose programs a
// supervisor judges. Calls of another architecture end the process, because their numbers mean other calls. Calls
// that change the memory of another process fail, because the arguments of a program are judged once.
func Programs() []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		bpf.LoadAbsolute{Off: nrAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeign, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
	}
	for _, nr := range []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT} {
		p = append(p, when(nr, bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})...)
	}
	for _, nr := range []uint32{unix.SYS_PTRACE, unix.SYS_PROCESS_VM_WRITEV} {
		p = append(p, when(nr, bpf.RetConstant{Val: eperm})...)
	}
	return append(p, bpf.RetConstant{Val: allow})
}

// waitKillable keeps a reported call waiting for its answer when a signal arrives that does not kill; it is
// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV of Linux 5.19.
const waitKillable = 1 << 5

// Listen is Install of a filter with a listener, the file descriptor that it returns.
func Listen(program []bpf.Instruction) (listener int, err error) {
	fd, err := install(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|waitKillable)
	return int(fd), err
}
