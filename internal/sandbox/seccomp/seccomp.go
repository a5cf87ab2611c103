//go:build linux && (amd64 || arm64)

// Package seccomp filters the system calls of the code in a sandbox.
package seccomp

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets of the fields of the kernel's seccomp_data. Arguments that the kernel takes as int are compared by
// their low 32 bits alone: the kernel ignores the others, so a comparison of all 64 bits could be bypassed.
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
	// enosys is for clone3: libc then calls clone, whose flags a filter can read. It is also for io_setup: the
	// machine has a fixed number of asynchronous operations, which no limit divides among users, and programs do
	// without.
	enosys      = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS)
	enoprotoopt = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOPROTOOPT)
	enomem      = uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOMEM)
	// pretendSuccess skips the call and reports success, for calls whose failure programs treat as an error.
	pretendSuccess = uint32(unix.SECCOMP_RET_ERRNO)
)

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// Default returns the filter for ordinary programs: everything is allowed except the closed calls. New calls
// of later kernels are allowed until they are listed.
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
	p = append(p, when(unix.SYS_IO_SETUP, bpf.RetConstant{Val: enosys})...)
	p = append(p, when(unix.SYS_CLONE, withoutBits(newNamespaces)...)...)
	p = append(p, when(unix.SYS_UNSHARE, withoutBits(newNamespaces)...)...)
	p = append(p, when(unix.SYS_IOCTL, terminalControls()...)...)
	p = append(p, when(unix.SYS_SOCKET, families()...)...)
	p = append(p, when(unix.SYS_SETSOCKOPT, socketFilters()...)...)
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

const tiocLinux = 0x541c // TIOCLINUX, which controls the console

// terminalControls refuses to insert terminal input or to control the console.
func terminalControls() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg1At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: tiocLinux, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: eperm},
	}
}

// families allows sockets that a network namespace covers. It does not cover AF_VSOCK, which connects a
// virtual machine to its hypervisor.
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

// socketFilters refuses to attach filters to sockets. The machine has a fixed amount of memory for compiled
// filters, which counts for no control group, and without it no other sandbox can have a filter of system calls.
func socketFilters() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg1At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SOL_SOCKET, SkipTrue: 5},
		bpf.LoadAbsolute{Off: arg2At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SO_ATTACH_FILTER, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SO_ATTACH_BPF, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SO_ATTACH_REUSEPORT_CBPF, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SO_ATTACH_REUSEPORT_EBPF, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: enoprotoopt},
	}
}

// coreLimit ignores changes of the limit of core files and reports success. The limit is 1, with which the
// kernel runs no core handler of the host; with 0, which many programs set, it would. resource is the offset
// of the argument that names the limit, and given are the offsets of words that are not all 0 if the call sets
// the limit.
func coreLimit(resource uint32, given ...uint32) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: resource, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.RLIMIT_CORE, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
	}
	for _, word := range given {
		p = append(p, bpf.LoadAbsolute{Off: word, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
			bpf.RetConstant{Val: pretendSuccess})
	}
	if len(given) > 0 {
		return append(p, bpf.RetConstant{Val: allow})
	}
	return append(p, bpf.RetConstant{Val: pretendSuccess})
}

// prefix is the number of instructions at the start of a filter that check the architecture and load the
// number of the call.
const prefix = 6

// Unbacked adds rules against the calls that allocate memory outside processes, for sandboxes whose memory is
// limited for each process. They fail as on a kernel that lacks them, and shared anonymous mappings fail as if
// there were no memory. Shared memory in files remains; their file system limits it. The device /dev/zero can be
// mapped shared as well, so the sandbox must not contain it.
func Unbacked(filter []bpf.Instruction) []bpf.Instruction {
	var closed []bpf.Instruction
	for _, nr := range []uint32{unix.SYS_MEMFD_CREATE, unix.SYS_SHMGET} {
		closed = append(closed, when(nr, bpf.RetConstant{Val: enosys})...)
	}
	closed = append(closed, when(unix.SYS_MMAP, sharedAnonymous()...)...)
	return slices.Insert(slices.Clone(filter), prefix, closed...)
}

// sharedAnonymous rejects shared mappings without a file, for mmap: their memory stays allocated while any
// process maps it and counts for none. Both kinds of shared mapping have the lowest bit of the flags.
func sharedAnonymous() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg3At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_ANONYMOUS, SkipFalse: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_SHARED, SkipFalse: 1},
		bpf.RetConstant{Val: enomem},
		bpf.RetConstant{Val: allow},
	}
}

// KeepOwners adds rules that skip the calls which change the owner of a file, or the users and groups of a process, and
// report success: installers and the starts of container images make them as root, and need no more than that they do
// not fail. With report, those which change the owner of a file are reported to the listener of Listen, which answers
// them. setuid and setgid are made for the given ids, because the launcher changes to them after it has installed the
// filter.
func KeepOwners(filter []bpf.Instruction, uid, gid uint32, report bool) []bpf.Instruction {
	var kept []bpf.Instruction
	owners := pretendSuccess
	if report {
		owners = unix.SECCOMP_RET_USER_NOTIF
	}
	for _, c := range []struct {
		answer uint32
		names  []string
	}{
		{owners, []string{"chown", "fchown", "fchownat", "lchown"}},
		{pretendSuccess, []string{"setfsgid", "setfsuid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid"}},
	} {
		for _, name := range c.names {
			if nr := here.syscallNumber(name); nr != noSuchCall {
				kept = append(kept, when(nr, bpf.RetConstant{Val: c.answer})...)
			}
		}
	}
	for nr, id := range map[uint32]uint32{unix.SYS_SETUID: uid, unix.SYS_SETGID: gid} {
		kept = append(kept, when(nr,
			bpf.LoadAbsolute{Off: arg0At, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: id, SkipTrue: 1},
			bpf.RetConstant{Val: allow},
			bpf.RetConstant{Val: pretendSuccess})...)
	}
	return slices.Insert(slices.Clone(filter), prefix, kept...)
}

// IsLchown reports whether a number is that of lchown, which some architectures do not have.
func IsLchown(nr uint32) bool { return nr == here.syscallNumber("lchown") }

// Install installs the filter for the calling thread and the processes it starts, permanently. The caller has
// locked its thread by runtime.LockOSThread; Install sets no_new_privs. The error names the system call that
// failed.
func Install(program []bpf.Instruction) error {
	_, err := install(program, 0)
	return err
}

func install(program []bpf.Instruction, flags uintptr) (result uintptr, err error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return 0, fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	result, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 0, fmt.Errorf("seccomp(SECCOMP_SET_MODE_FILTER): %w", errno)
	}
	return result, nil
}
