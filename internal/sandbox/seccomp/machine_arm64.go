//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch    = unix.AUDIT_ARCH_AARCH64
	firstForeign = 0x40000000 // no call of this architecture has such a number
)

// closedHere returns further closed calls of this architecture.
func closedHere() []uint32 { return nil }

// here is the architecture of this program.
var here = arm64
