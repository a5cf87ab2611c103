//go:build linux

package cgroup

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
)

// Usage is what everything in it uses. What no group tells is -1, as is what
// lies on disk.
func (g *Group) Usage() sandbox.Usage {
	u := sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}
	if micros := counted(g.v2, "cpu.stat", "usage_usec "); micros >= 0 {
		u.CPU = time.Duration(micros) * time.Microsecond
	} else if nanos := number(g.v1["cpu"], "cpuacct.usage"); nanos >= 0 {
		u.CPU = time.Duration(nanos)
	}
	switch dir, second := g.of("memory"); {
	case dir == "":
	case second:
		u.Memory, u.Peak = number(dir, "memory.current"), number(dir, "memory.peak") // which is there from Linux 5.19 on
		u.OOMKills = counted(dir, "memory.events", "oom_kill ")
	default:
		u.Memory, u.Peak = number(dir, "memory.usage_in_bytes"), number(dir, "memory.max_usage_in_bytes")
		u.OOMKills = counted(dir, "memory.oom_control", "oom_kill ")
	}
	dir, _ := g.of("pids")
	u.Processes = number(dir, "pids.current")
	return u
}

// of is the folder that tells about a controller; second tells that it is of
// version 2.
func (g *Group) of(controller string) (dir string, second bool) {
	if g.v2 != "" && slices.Contains(g.place.in2, controller) {
		return g.v2, true
	}
	return g.v1[controller], false
}

// number reads a file that says a number; -1 when it does not.
func number(dir, file string) int64 {
	if dir == "" {
		return -1
	}
	b, err := get(dir, file)
	n, err2 := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || err2 != nil {
		return -1
	}
	return n
}

// counted reads the number after a word that begins a line; -1 when there is none.
func counted(dir, file, word string) int64 {
	if dir == "" {
		return -1
	}
	b, err := get(dir, file)
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
