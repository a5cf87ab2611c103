//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch    = unix.AUDIT_ARCH_AARCH64
	firstForeign = 0x40000000 // no call of this machine has such a number
)

// closedHere are closed calls that only this kind of machine has.
func closedHere() []uint32 { return nil }

// here is this machine.
var here = arm64
