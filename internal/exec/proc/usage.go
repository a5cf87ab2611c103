package proc

import "time"

// Usage is what a child and what it started use at one moment.
type Usage struct {
	Processes int           // that are alive
	CPU       time.Duration // user and system time of those, and of what they waited for
	Memory    int64         // bytes in memory; what is shared counts for each
	Ports     []int         // TCP ports they listen on, in order
}
