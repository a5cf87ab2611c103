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
