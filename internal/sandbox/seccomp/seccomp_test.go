//go:build linux && (amd64 || arm64)

package seccomp

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter on one call.
func verdict(t *testing.T, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(Default())
	if err != nil {
		t.Fatal(err)
	}
	return says(t, vm, arch, nr, args...)
}

// Where memory is held process by process, none can be had that belongs to no
// process.
//
//redteam:attack Code in a sandbox is shut in several times: memory of no process is taken where no control group counts it
//redteam:attack Code in a sandbox is shut in several times: shared anonymous memory is taken where no control group counts it
func TestMemoryOfNoProcessIsClosed(t *testing.T) {
	for name, filter := range map[string][]bpf.Instruction{"default": Default(), "strict": Strict()} {
		vm, err := bpf.NewVM(Unbacked(filter))
		if err != nil {
			t.Fatal(err)
		}
		for nr, want := range map[uint32]uint32{
			unix.SYS_MEMFD_CREATE: enosys,
			unix.SYS_SHMGET:       enosys,
			unix.SYS_MOUNT:        eperm,
			unix.SYS_READ:         allow,
		} {
			if got := says(t, vm, auditArch, nr); got != want {
				t.Errorf("%s: call %d: %#x, want %#x", name, nr, got, want)
			}
		}
		for flags, want := range map[uint64]uint32{
			unix.MAP_SHARED | unix.MAP_ANONYMOUS:                      enomem,
			unix.MAP_SHARED_VALIDATE | unix.MAP_ANONYMOUS:             enomem,
			unix.MAP_SHARED | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE: enomem,
			unix.MAP_SHARED | unix.MAP_ANONYMOUS | 1<<40:              enomem,
			unix.MAP_PRIVATE | unix.MAP_ANONYMOUS:                     allow,
			unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED:    allow,
			unix.MAP_SHARED:  allow,
			unix.MAP_PRIVATE: allow,
		} {
			if got := says(t, vm, auditArch, unix.SYS_MMAP, 0, 1<<30, 3, flags); got != want {
				t.Errorf("%s: mmap with flags %#x: %#x, want %#x", name, flags, got, want)
			}
		}
	}
}

//redteam:attack Code in a sandbox is shut in several times: a limit of core files of 0 has a crash run the host's handler as root
func TestTheDefaultFilterDecides(t *testing.T) {
	const high = 1 << 40 // bits the kernel ignores
	for _, c := range []struct {
		name string
		want uint32
		nr   uint32
		args []uint64
	}{
		{"read", allow, unix.SYS_READ, nil},
		{"execve", allow, unix.SYS_EXECVE, nil},
		{"a thread", allow, unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD}},
		{"a new user namespace by clone", eperm, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | 17}},
		{"clone3", enosys, unix.SYS_CLONE3, nil},
		{"unshare of files", allow, unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES}},
		{"unshare of the network", eperm, unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWNET}},
		{"setns", eperm, unix.SYS_SETNS, nil},
		{"mount", eperm, unix.SYS_MOUNT, nil},
		{"bpf", eperm, unix.SYS_BPF, nil},
		{"io_uring", eperm, unix.SYS_IO_URING_SETUP, nil},
		{"clock_adjtime", eperm, unix.SYS_CLOCK_ADJTIME, nil},
		{"asking for the window size", allow, unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}},
		{"TIOCSTI", eperm, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}},
		{"TIOCSTI with high bits", eperm, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI | high}},
		{"TIOCLINUX", eperm, unix.SYS_IOCTL, []uint64{0, 0x541c}},
		{"a Unix socket", allow, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, 1, 0}},
		{"an IPv6 socket", allow, unix.SYS_SOCKET, []uint64{unix.AF_INET6, 1, 0}},
		{"netlink route", allow, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_ROUTE}},
		{"netlink audit", eperm, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_AUDIT}},
		{"vsock", eperm, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, 1, 0}},
		{"vsock with high bits", eperm, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK | high, 1, 0}},
		{"packets", eperm, unix.SYS_SOCKET, []uint64{unix.AF_PACKET, 3, 0}},
		{"the limit of files", allow, unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_NOFILE, 0x7f00_0000_1000}},
		{"the limit of core files", pretendSuccess, unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_CORE, 0x7f00_0000_1000}},
		{"the limit of core files with high bits", pretendSuccess, unix.SYS_SETRLIMIT,
			[]uint64{unix.RLIMIT_CORE | high, 0x7f00_0000_1000}},
		{"asking for the limit of core files", allow, unix.SYS_PRLIMIT64,
			[]uint64{0, unix.RLIMIT_CORE, 0, 0x7f00_0000_1000}},
		{"another limit by prlimit", allow, unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, 0x7f00_0000_1000}},
		{"the limit of core files by prlimit", pretendSuccess, unix.SYS_PRLIMIT64,
			[]uint64{0, unix.RLIMIT_CORE, 0x7f00_0000_1000}},
		{"the same from an address without low bits", pretendSuccess, unix.SYS_PRLIMIT64,
			[]uint64{0, unix.RLIMIT_CORE, 0x7f00_0000_0000}},
		{"the same from a low address", pretendSuccess, unix.SYS_PRLIMIT64,
			[]uint64{7, unix.RLIMIT_CORE | high, 0x1000}},
		{"asynchronous operations", enosys, unix.SYS_IO_SETUP, []uint64{1}},
		{"an option of a socket", allow, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}},
		{"a filter of a socket", enoprotoopt, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}},
		{"a filter of a socket with high bits", enoprotoopt, unix.SYS_SETSOCKOPT,
			[]uint64{3, unix.SOL_SOCKET | high, unix.SO_ATTACH_FILTER | high}},
		{"a filter of many sockets", enoprotoopt, unix.SYS_SETSOCKOPT,
			[]uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}},
		{"an option of that number of TCP", allow, unix.SYS_SETSOCKOPT,
			[]uint64{3, unix.IPPROTO_TCP, unix.SO_ATTACH_FILTER}},
		{"a file without a name", allow, unix.SYS_MEMFD_CREATE, nil},
		{"an x32 number", kill, 0x40000000, nil},
	} {
		if got := verdict(t, auditArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := verdict(t, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != kill {
		t.Errorf("a call by another machine's table: %#x, want the process killed", got)
	}
}

func TestTheKernelTakesTheFilter(t *testing.T) {
	done := make(chan error, 3)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, filter and all
		if err := Install(Default()); err != nil {
			done <- err
			return
		}
		if fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
			done <- errors.Join(errors.New("a vsock socket was not refused"), err)
			unix.Close(fd)
		}
		if err := unix.Unshare(unix.CLONE_NEWUTS); !errors.Is(err, unix.EPERM) {
			done <- errors.Join(errors.New("a namespace was not refused"), err)
		}
	}()
	for err := range done {
		t.Error(err)
	}
}

// Owners and users are kept: the calls report success and are not made, except those by which the launcher becomes the
// code's user.
func TestOwnersAreKept(t *testing.T) {
	for name, filter := range map[string][]bpf.Instruction{"default": Default(), "strict": Strict()} {
		vm, err := bpf.NewVM(Unbacked(KeepOwners(filter, 1000, 1001, true)))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			want, nr uint32
			arg      uint64
		}{
			{unix.SECCOMP_RET_USER_NOTIF, unix.SYS_FCHOWNAT, 0},
			{unix.SECCOMP_RET_USER_NOTIF, unix.SYS_FCHOWN, 0},
			{pretendSuccess, unix.SYS_SETGROUPS, 0},
			{pretendSuccess, unix.SYS_SETRESUID, 1000},
			{allow, unix.SYS_SETUID, 1000},
			{allow, unix.SYS_SETUID, 1<<40 | 1000},
			{pretendSuccess, unix.SYS_SETUID, 0},
			{allow, unix.SYS_SETGID, 1001},
			{pretendSuccess, unix.SYS_SETGID, 1000},
			{eperm, unix.SYS_MOUNT, 0},
			{enosys, unix.SYS_MEMFD_CREATE, 0},
			{allow, unix.SYS_READ, 0},
		} {
			if got := says(t, vm, auditArch, c.nr, c.arg); got != c.want {
				t.Errorf("%s: call %d with %d: %#x, want %#x", name, c.nr, c.arg, got, c.want)
			}
		}
	}
}
