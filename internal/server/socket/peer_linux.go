package socket

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"gatehouse/internal/exec/proc"
)

// peerUID is the user of the process at the other end.
func peerUID(conn *net.UnixConn) (uid uint32, known bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, false, err
	}
	return cred.Uid, true, nil
}

// peerIsChild asks the kernel for the process itself where it can (Linux 6.5),
// because by the time that a number is looked up it may be another's.
func peerIsChild(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	child := true
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil || cred.Pid <= 0 {
			return // it is in another space of process numbers
		}
		if int(cred.Uid) != os.Getuid() {
			child = false // it is known by its own user, who is not the host's
			return
		}
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			child = !errors.Is(err, unix.ENOPROTOOPT) || proc.IsChild(int(cred.Pid))
			return
		}
		defer unix.Close(pidfd)
		child = proc.IsChild(int(cred.Pid))
		if unix.PidfdSendSignal(pidfd, 0, nil, 0) == unix.ESRCH {
			child = true // it has ended: what was looked at may have been another
		}
	})
	return child || err != nil
}
