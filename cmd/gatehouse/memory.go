package main

import (
	"bufio"
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// gcPercent lets the heap grow fivefold between collections. Requests
	// leave much garbage on a small heap; the usual 100 halves what a busy
	// host gets done.
	gcPercent = 400

	// leastLimit keeps a small machine from collecting all the time.
	leastLimit = 256 << 20
)

// tuneMemory sets how the garbage collector works, unless the person has: a
// generous pace, and a soft limit of half of what there is, from where on it
// works harder.
func tuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		if there := memory(); there > 0 {
			debug.SetMemoryLimit(max(there/2, leastLimit))
		}
	}
}

// memory is how many bytes this process may use: the machine's, or its
// control group's share. 0 means unknown.
func memory() int64 {
	there := machine()
	b, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return there
	}
	if share, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil &&
		(there == 0 || share < there) {
		return share
	}
	return there
}

// machine reads the memory of the machine where the system tells it in a file.
func machine() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 3 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}
