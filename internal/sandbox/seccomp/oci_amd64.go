//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const ociArch = "SCMP_ARCH_X86_64"

// closedByNameHere returns further closed calls of this architecture.
func closedByNameHere() []call {
	return []call{{"iopl", unix.SYS_IOPL}, {"ioperm", unix.SYS_IOPERM}, {"modify_ldt", unix.SYS_MODIFY_LDT}}
}
