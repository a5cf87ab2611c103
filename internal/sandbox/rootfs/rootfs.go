//go:build linux

// Package rootfs describes a sandbox to its agent, for all drivers: the file system of the host or of an
// image, user ids, limits, and how it is paused.
package rootfs

import (
	"slices"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/egress"
)

// most returns the highest limits that may be requested.
func most() sandbox.Limits {
	l := sandbox.Defaults()
	l.MemoryMiB, l.VCPUs, l.Processes, l.DiskMiB, l.Descriptors = 1<<20, 1024, 1<<16, 1<<20, 1<<16
	l.OutputBytes, l.Call = 1<<30, 24*60*60*1e9
	return l
}

// InForce returns the limits in force for requested ones. The writable files are in memory too, so the disk has
// at most half of the memory.
func InForce(l sandbox.Limits) (sandbox.Limits, error) {
	l, err := l.Within(most())
	l.DiskMiB = min(l.DiskMiB, max(l.MemoryMiB/2, 1))
	return l, err
}

// Bounds returns the part of a plan that can be changed later. env is the environment of the layout followed
// by the requested one; port is that of the egress proxy, 0 if there is none; together says that memory is
// limited for the sandbox as a whole, otherwise it is limited for each process.
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
