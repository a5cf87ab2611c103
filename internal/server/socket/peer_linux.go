package socket

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"gatehouse/internal/exec/proc"
)

// peerUID returns the user of the process at the other end.
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

// peerIsChild asks the kernel for a descriptor of the process if it can (Linux 6.5), because a process
// number may belong to another process by the time it is looked up.
func peerIsChild(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	child := true
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil || cred.Pid <= 0 {
			return // it is in another PID namespace
		}
		if int(cred.Uid) != os.Getuid() {
			child = false // recognized by its user, who is not the host's
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
			child = true // it has ended, and the number may have belonged to another process
		}
	})
	return child || err != nil
}
