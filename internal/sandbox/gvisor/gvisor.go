// Package gvisor makes sandboxes whose system calls are answered by a kernel of
// their own that is a process: gVisor, by way of its program runsc.
//
// The code never speaks to the host's kernel. What runs inside is the same agent
// as in other drivers, which speaks to the host through two pipes. The kernel
// with everything in it can be kept as it is at a moment, and be gone on from.
// It costs memory of its own, a hundred milliseconds at the start of a sandbox,
// and time at each system call.
package gvisor

import "log/slog"

// Name is what the driver is called.
const Name = "gvisor"

// Program is what our own build of runsc is called. It is looked for in the
// folder of the running program, then runsc in the PATH.
const Program = "gatehouse-runsc"

// Options are for New. The zero value serves.
type Options struct {
	Runsc string // the program's path or name; "" means ours, or else one that is installed
	// Folder is for bundles, state and snapshots; "" means the system's place for temporary
	// files. Tests set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

const remedyMissing = "build it with make runsc, which puts " + Program + " into bin, and keep it beside gatehouse; or install gVisor's runsc (https://gvisor.dev/docs/user_guide/install)"
