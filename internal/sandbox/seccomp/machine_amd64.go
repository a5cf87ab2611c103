//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch    = unix.AUDIT_ARCH_X86_64
	firstForeign = 0x40000000 // numbers from here on are those of the x32 ABI
)

// closedHere returns further closed calls of this architecture.
func closedHere() []uint32 { return []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT} }

// here is the architecture of this program.
var here = amd64
