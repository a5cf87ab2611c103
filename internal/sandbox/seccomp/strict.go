//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

//go:generate go run ./generate

// numbered is a call with its number on each architecture.
type numbered struct {
	name string
	at   [2]int64 // indexed by machine.column
}

// machine is an architecture.
type machine struct {
	column int
	arch   uint32
}

// Architectures.
var (
	amd64 = machine{0, unix.AUDIT_ARCH_X86_64}
	arm64 = machine{1, unix.AUDIT_ARCH_AARCH64}
)

// open are the calls that the strict filter allows: those that ordinary programs make, similar to the defaults
// of container engines. They read or change nothing outside the program and its files. All other calls, and
// those of later kernels, are closed.
var open = strings.Fields(`
	accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
	clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat
	dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
	eventfd eventfd2 execve execveat exit exit_group
	faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
	fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate
	futex futex_requeue futex_wait futex_waitv futex_wake futimesat
	getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
	getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit get_robust_list
	getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
	inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
	io_cancel io_destroy io_getevents io_pgetevents io_submit ioprio_get ioprio_set
	kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
	lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat
	madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mknod mknodat
	mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
	mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
	nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2
	pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64
	process_mrelease pselect6 pwrite64 pwritev pwritev2
	read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr rename renameat
	renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
	rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
	sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
	sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
	sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg
	sendmsg sendto setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
	setresgid setresuid setreuid setrlimit set_robust_list setsid set_tid_address setuid
	setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice
	stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo
	tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
	timerfd_create timerfd_gettime timerfd_settime times tkill truncate
	umask uname unlink unlinkat utime utimensat utimes vfork wait4 waitid write writev
`)

// conditional are allowed except for some arguments.
var conditional = []string{"clone", "ioctl", "personality", "setsockopt", "socket"}

// Strict returns the filter for programs that are trusted less: only the listed calls are allowed. Other known
// calls fail with EPERM, and calls of later kernels with ENOSYS, as on a kernel that lacks them.
func Strict() []bpf.Instruction { return here.strict() }

func (m machine) strict() []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: m.arch, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		bpf.LoadAbsolute{Off: nrAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeign, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
	}
	p = append(p, when(m.syscallNumber("clone3"), bpf.RetConstant{Val: enosys})...)
	p = append(p, when(m.syscallNumber("io_setup"), bpf.RetConstant{Val: enosys})...)
	p = append(p, when(m.syscallNumber("clone"), withoutBits(newNamespaces)...)...)
	p = append(p, when(m.syscallNumber("ioctl"), terminalControls()...)...)
	p = append(p, when(m.syscallNumber("socket"), families()...)...)
	p = append(p, when(m.syscallNumber("setsockopt"), socketFilters()...)...)
	p = append(p, when(m.syscallNumber("personality"), personalities()...)...)
	p = append(p, when(m.syscallNumber("setrlimit"), coreLimit(arg0At)...)...)
	p = append(p, when(m.syscallNumber("prlimit64"), coreLimit(arg1At, arg2At, arg2At+4)...)...)
	for first, last := range m.ranges() {
		p = append(p,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: first, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: last, SkipTrue: 1},
			bpf.RetConstant{Val: allow})
	}
	return append(p,
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: m.last(), SkipTrue: 1},
		bpf.RetConstant{Val: eperm},
		bpf.RetConstant{Val: enosys})
}

// personalities allows reading the personality and setting those that only change the version that the kernel
// reports. Others make a program easier to exploit.
func personalities() []bpf.Instruction {
	const (
		linux32 = 0x8
		oldName = 0x20000
		ask     = 0xffffffff
	)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: arg0At, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: linux32, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: oldName, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: oldName | linux32, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ask, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: eperm},
	}
}

// noSuchCall is the number of a call that an architecture does not have.
const noSuchCall = ^uint32(0)

// syscallNumber returns the number of a known call, or noSuchCall.
func (m machine) syscallNumber(name string) uint32 {
	i, _ := slices.BinarySearchFunc(calls, name, func(c numbered, name string) int {
		return strings.Compare(c.name, name)
	})
	return uint32(calls[i].at[m.column])
}

// last returns the highest number of a known call.
func (m machine) last() (nr uint32) {
	for _, c := range calls {
		if n := c.at[m.column]; n >= 0 {
			nr = max(nr, uint32(n))
		}
	}
	return nr
}

// ranges yields the numbers of the allowed calls as ranges of consecutive numbers, in order.
func (m machine) ranges() func(yield func(first, last uint32) bool) {
	isOpen := map[string]bool{}
	for _, name := range open {
		isOpen[name] = true
	}
	var all []uint32
	for _, c := range calls {
		if n := c.at[m.column]; n >= 0 && isOpen[c.name] {
			all = append(all, uint32(n))
		}
	}
	slices.Sort(all)
	return func(yield func(uint32, uint32) bool) {
		for i := 0; i < len(all); {
			first := i
			for i++; i < len(all) && all[i] == all[i-1]+1; i++ {
			}
			if !yield(all[first], all[i-1]) {
				return
			}
		}
	}
}
