package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// gcPercent lets the heap grow fivefold between collections. Requests
	// leave much garbage on a small heap; the usual 100 halves what a busy
	// host gets done.
	gcPercent = 400

	// leastLimit keeps a small machine from collecting all the time.
	leastLimit = 256 << 20

	// startTakes is after how long a process that still runs is a host that has started.
	startTakes = 3 * time.Second
	// slowStartTakes is the same on a machine that is slow or busy: what it started after startTakes is in memory again.
	slowStartTakes = 10 * startTakes
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

// memory is how many bytes this process may use: the machine's, or the least that
// its control group and those above allow. 0 means unknown.
func memory() int64 {
	there := machine()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return there
	}
	if share := groupLimit("/sys/fs/cgroup", string(own)); share > 0 && (there == 0 || share < there) {
		return share
	}
	return there
}

// groupLimit is the least limit of memory of a control group and those above it, 0
// if there is none. top is where the hierarchies are mounted, and own what the
// kernel says of the groups of a process.
func groupLimit(top, own string) (least int64) {
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 || strings.Contains(f[2], "..") {
			continue
		}
		dir, file := top, "memory.max"
		switch {
		case f[0] == "0" && f[1] == "":
		case slices.Contains(strings.Split(f[1], ","), "memory"): // version 1
			dir, file = filepath.Join(top, f[1]), "memory.limit_in_bytes"
		default:
			continue
		}
		for path := filepath.Join("/", f[2]); ; path = filepath.Dir(path) {
			b, _ := os.ReadFile(filepath.Join(dir, path, file))
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
			if err == nil && n > 0 && (least == 0 || n < least) {
				least = n
			}
			if path == "/" {
				break
			}
		}
	}
	return least
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
