//go:build linux

// Package rootfs says what a sandbox looks like to the agent, whoever makes its
// walls: what is shown of the host or of an image, whose ids it has, what may be
// used up in it, and how it stands still.
package rootfs

import (
	"slices"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/egress"
)

// most is what may be asked for.
func most() sandbox.Limits {
	l := sandbox.Defaults()
	l.MemoryMiB, l.VCPUs, l.Processes, l.DiskMiB, l.Descriptors = 1<<20, 1024, 1<<16, 1<<20, 1<<16
	l.OutputBytes, l.Call = 1<<30, 24*60*60*1e9
	return l
}

// Held are the limits that hold when these are asked for. The files are in
// memory too, so that a sandbox has at most half of its memory for them.
func Held(l sandbox.Limits) (sandbox.Limits, error) {
	l, err := l.Within(most())
	l.DiskMiB = min(l.DiskMiB, max(l.MemoryMiB/2, 1))
	return l, err
}

// Bounds is the part of a plan that can be changed later. env is that of the
// look and, after it, what was asked for; port is that of the
// way out, 0 while there is none; together tells that memory is limited for the
// sandbox as a whole, else it is for each process.
func Bounds(env []string, limits sandbox.Limits, port int64, together bool) agentprotocol.Plan {
	own := slices.Clone(environment)
	if port != 0 {
		own = append(own, egress.Environment()...)
	}
	p := agentprotocol.Plan{
		DiskBytes: int64(limits.DiskMiB) << 20, DiskFiles: int64(limits.DiskMiB) * filesPerMiB,
		Descriptors: int64(limits.Descriptors), Processes: int64(limits.Processes),
		Env: append(own, env...), Proxy: port,
	}
	if !together {
		p.DataBytes = int64(limits.MemoryMiB) << 20
	}
	return p
}
