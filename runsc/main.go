// Runsc is the program that makes the kernels in user space of the driver
// gvisor, in the version that the driver is tested with.
//
// It is gVisor's own command and takes its arguments. It is a program of its own,
// and a module of its own, since it is larger than all of Gatehouse and starts
// itself again for each part of a sandbox. Build it without cgo: it does so where
// there are no libraries.
package main

import (
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/version"
)

// The linker sets the version, which it only does where it is used.
var _ = version.Version()

func main() { maincli.Main() }
