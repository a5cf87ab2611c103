//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch    = unix.AUDIT_ARCH_X86_64
	firstForeign = 0x40000000 // from here on the numbers are those of x32
)

// closedHere are closed calls that only this kind of machine has.
func closedHere() []uint32 { return []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT} }

// here is this machine.
var here = amd64
