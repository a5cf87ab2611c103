package socket

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"
)

// The kernel's names for asking who is at the other end; sys/un.h and
// sys/ucred.h.
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

// peerUID is the user of the process at the other end.
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
			"the system describes its users in version %d, expected %d",
			cred.version,
			xucredVersion,
		)
	}
	return cred.uid, true, nil
}

// peerIsChild: this system does not say which process is at the other end.
func peerIsChild(*net.UnixConn) bool { return false }
