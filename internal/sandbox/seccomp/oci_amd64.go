//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const ociArch = "SCMP_ARCH_X86_64"

// namedHere are the closed calls that only this kind of machine has.
func namedHere() []call {
	return []call{{"iopl", unix.SYS_IOPL}, {"ioperm", unix.SYS_IOPERM}, {"modify_ldt", unix.SYS_MODIFY_LDT}}
}
