package sandbox

import (
	"context"
	"time"
)

// UsageReporter is implemented by a Sandbox that measures its resource use.
type UsageReporter interface {
	Usage(ctx context.Context) (Usage, error)
}

// Usage is the resource use of all of a sandbox at a moment. An unknown field is -1.
type Usage struct {
	CPU       time.Duration // since the sandbox was made
	Memory    int64         // bytes
	Peak      int64         // highest Memory so far, in bytes
	Processes int64
	Disk      int64 // bytes of its writable file systems
	OOMKills  int64 // programs that the kernel killed because memory ran out
}
