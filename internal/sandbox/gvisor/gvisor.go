// Package gvisor makes sandboxes whose system calls are handled by gVisor, a kernel that runs as a process of
// the host, started by its program runsc.
//
// The code never calls the host's kernel directly. The agent inside is the same as in other drivers and is
// connected to the host by two pipes. A snapshot of the kernel with everything in it can be taken and
// restored. It costs memory, a hundred milliseconds at the start of a sandbox, and time at each system call.
package gvisor

import "log/slog"

// Name is the driver's name.
const Name = "gvisor"

// Program is the name of this project's build of runsc. It is looked for in the folder of the running program,
// then runsc in the PATH.
const Program = "gatehouse-runsc"

// Options are for New. The zero value is ready to use.
type Options struct {
	Runsc string // the program's path or name; "" means Program, or else an installed runsc
	// Folder is for bundles, state and snapshots; "" means the system's folder for temporary files. Tests
	// set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

const remedyMissing = "build it with make runsc, which puts " +
	Program + " into bin, and keep it beside gatehouse; or install gVisor's runsc " +
	"(https://gvisor.dev/docs/user_guide/install)"
