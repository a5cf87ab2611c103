//go:build linux && (amd64 || arm64)

// Package seccomp closes the system calls that code in a sandbox has no
// business with.
package seccomp

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Where the fields of the kernel's seccomp_data lie. Arguments the kernel
// takes as int are compared on their low 32 bits alone: it ignores the rest,
// so a comparison of all 64 could be walked around.
const (
	nrAt   = 0
	archAt = 4
	arg0At = 16
	arg1At = 24
	arg2At = 32
	arg3At = 40
)

const (
	allow = uint32(unix.SECCOMP_RET_ALLOW)
	kill  = uint32(unix.SECCOMP_RET_KILL_PROCESS)
	eperm = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM)
	// libc answers ENOSYS from clone3 with clone, whose flags a filter can see.
	enosys = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS)
	enomem = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOMEM)
	// done answers as if the call had been made, for calls that programs take for
	// broken when they are refused.
	done = uint32(unix.SECCOMP_RET_ERRNO)
)

const newSpaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// Default is the filter for ordinary programs: everything but what is listed
// as closed. New calls of later kernels stay open until they are listed.
func Default() []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		bpf.LoadAbsolute{Off: nrAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeign, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
	}
	for _, nr := range append(closedHere(), closed()...) {
		p = append(p, when(nr, bpf.RetConstant{Val: eperm})...)
	}
	p = append(p, when(unix.SYS_CLONE3, bpf.RetConstant{Val: enosys})...)
	p = append(p, when(unix.SYS_CLONE, withoutBits(newSpaces)...)...)
	p = append(p, when(unix.SYS_UNSHARE, withoutBits(newSpaces)...)...)
	p = append(p, when(unix.SYS_IOCTL, terminalControls()...)...)
	p = append(p, when(unix.SYS_SOCKET, families()...)...)
	p = append(p, when(unix.SYS_SETRLIMIT, coreLimit(arg0At)...)...)
	p = append(p, when(unix.SYS_PRLIMIT64, coreLimit(arg1At, arg2At, arg2At+4)...)...)
	return append(p, bpf.RetConstant{Val: allow})
}

// when runs then, which must return, for one system call.
func when(nr uint32, then ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(then))},
	}, then...)
}

// withoutBits allows a call whose first argument has none of the bits.
func withoutBits(bits uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg0At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits, SkipFalse: 1},
		bpf.RetConstant{Val: eperm},
		bpf.RetConstant{Val: allow},
	}
}

const tiocLinux = 0x541c // drives the console

// terminalControls refuses to type into a terminal or to drive the console.
func terminalControls() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg1At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: tiocLinux, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: eperm},
	}
}

// families allows sockets that a network namespace covers. It does not cover
// AF_VSOCK, by which a guest reaches its hypervisor.
func families() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg0At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 5},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 3},
		bpf.LoadAbsolute{Off: arg2At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.NETLINK_ROUTE, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: eperm},
	}
}

// coreLimit leaves the limit of core files as it is, and says that it was set. It
// is 1, by which the kernel runs no handler of the host for a crash; 0, which
// many programs set, would have it run again. resource is where the call has
// the limit's name, and given are the words of which one is not 0 when the limit
// is to be set.
func coreLimit(resource uint32, given ...uint32) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: resource, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.RLIMIT_CORE, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
	}
	for _, word := range given {
		p = append(p, bpf.LoadAbsolute{Off: word, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
			bpf.RetConstant{Val: done})
	}
	if len(given) > 0 {
		return append(p, bpf.RetConstant{Val: allow})
	}
	return append(p, bpf.RetConstant{Val: done})
}

// prefix is how many instructions a filter begins with that judge the kind of
// processor and load the number of the call.
const prefix = 6

// Unbacked closes the calls that take memory which is data of no process, for
// sandboxes whose memory is held process by process. Programs find a kernel
// without them, and with no memory for mappings that are shared and anonymous.
// What is left is shared memory in files, which their file system bounds; the
// device zero, which can be mapped shared as well, must not be there.
func Unbacked(filter []bpf.Instruction) []bpf.Instruction {
	var closed []bpf.Instruction
	for _, nr := range []uint32{unix.SYS_MEMFD_CREATE, unix.SYS_SHMGET} {
		closed = append(closed, when(nr, bpf.RetConstant{Val: enosys})...)
	}
	closed = append(closed, when(unix.SYS_MMAP, sharedAnonymous()...)...)
	return slices.Insert(slices.Clone(filter), prefix, closed...)
}

// sharedAnonymous refuses mappings that are shared and of no file, for mmap: their
// memory stays taken while any process maps it, and counts as data of none. Both
// kinds of shared mapping have the lowest bit of the flags.
func sharedAnonymous() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg3At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_ANONYMOUS, SkipFalse: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_SHARED, SkipFalse: 1},
		bpf.RetConstant{Val: enomem},
		bpf.RetConstant{Val: allow},
	}
}

// Install closes the calls for the calling thread and what it starts, for
// good. The caller holds its thread by runtime.LockOSThread; no_new_privs is
// set on the way. The error names the system call that failed.
func Install(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assembling the seccomp filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp(SECCOMP_SET_MODE_FILTER): %w", errno)
	}
	return nil
}
