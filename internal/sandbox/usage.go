package sandbox

import (
	"context"
	"time"
)

// Measured is what a Sandbox offers that knows what it uses.
type Measured interface {
	Usage(ctx context.Context) (Usage, error)
}

// Usage is what a sandbox uses at a moment, everything in it together. A member
// that is not known is -1.
type Usage struct {
	CPU       time.Duration // since it was made
	Memory    int64         // bytes
	Peak      int64         // bytes of memory, at most so far
	Processes int64
	Disk      int64 // bytes of its writable file systems
	OOMKills  int64 // programs the kernel ended for want of memory
}
