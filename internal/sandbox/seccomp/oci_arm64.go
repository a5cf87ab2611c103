//go:build linux

package seccomp

const ociArch = "SCMP_ARCH_AARCH64"

// namedHere are the closed calls that only this kind of machine has.
func namedHere() []call { return nil }
