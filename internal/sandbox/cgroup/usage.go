//go:build linux

package cgroup

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
)

// Usage returns the group's counters. Unknown ones are -1, as is Disk.
func (g *Group) Usage() sandbox.Usage {
	u := sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}
	if micros := readCounter(g.v2, "cpu.stat", "usage_usec "); micros >= 0 {
		u.CPU = time.Duration(micros) * time.Microsecond
	} else if nanos := readNumber(g.folder("cpu"), "cpuacct.usage"); nanos >= 0 {
		u.CPU = time.Duration(nanos)
	}
	switch dir, second := g.controllerFolder("memory"); {
	case dir == "":
	case second:
		// Memory.peak exists since Linux 5.19.
		u.Memory, u.Peak = readNumber(dir, "memory.current"), readNumber(dir, "memory.peak")
		u.OOMKills = readCounter(dir, "memory.events", "oom_kill ")
	default:
		u.Memory, u.Peak = readNumber(dir, "memory.usage_in_bytes"), readNumber(dir, "memory.max_usage_in_bytes")
		u.OOMKills = readCounter(dir, "memory.oom_control", "oom_kill ")
	}
	dir, _ := g.controllerFolder("pids")
	u.Processes = readNumber(dir, "pids.current")
	return u
}

// controllerFolder returns the folder of a controller; second reports that it is of version 2.
func (g *Group) controllerFolder(controller string) (dir string, second bool) {
	if g.v2 != "" && slices.Contains(g.hierarchy.in2, controller) {
		return g.v2, true
	}
	return g.folder(controller), false
}

// readNumber reads a file that contains a number. It returns -1 on an error.
func readNumber(dir, file string) int64 {
	if dir == "" {
		return -1
	}
	b, err := readFile(dir, file)
	n, err2 := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || err2 != nil {
		return -1
	}
	return n
}

// readCounter reads the number after a word at the start of a line. It returns -1 if there is none.
func readCounter(dir, file, word string) int64 {
	if dir == "" {
		return -1
	}
	b, err := readFile(dir, file)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), word); ok {
			if v, err := strconv.ParseInt(n, 10, 64); err == nil {
				return v
			}
		}
	}
	return -1
}
