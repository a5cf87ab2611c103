package proc

import "time"

// Usage is the present resource usage of a child and its descendants.
type Usage struct {
	Processes int           // running processes
	CPU       time.Duration // user and system time of those, and of the children they waited for
	Memory    int64         // bytes of memory; shared memory counts for each process
	Ports     []int         // TCP ports they listen on, sorted
}
