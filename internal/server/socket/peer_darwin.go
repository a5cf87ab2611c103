package socket

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"
)

// Constants of sys/un.h and sys/ucred.h for asking the kernel for the peer.
const (
	solLocal       = 0
	localPeercred  = 1
	xucredVersion  = 0
	xucredGroupMax = 16
)

type xucred struct {
	version uint32
	uid     uint32
	ngroups int16
	_       [2]byte
	groups  [xucredGroupMax]uint32
}

// peerUID returns the user of the process at the other end.
func peerUID(conn *net.UnixConn) (uid uint32, known bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var cred xucred
	size := uint32(unsafe.Sizeof(cred))
	var failed syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, failed = syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, solLocal, localPeercred,
			uintptr(unsafe.Pointer(&cred)), uintptr(unsafe.Pointer(&size)), 0)
	})
	switch {
	case err != nil:
		return 0, false, err
	case failed != 0:
		return 0, false, failed
	case cred.version != xucredVersion:
		return 0, false, fmt.Errorf(
			"the system reports credentials in version %d, expected %d",
			cred.version,
			xucredVersion,
		)
	}
	return cred.uid, true, nil
}

// peerIsChild returns false, because this system does not report the peer process.
func peerIsChild(*net.UnixConn) bool { return false }
