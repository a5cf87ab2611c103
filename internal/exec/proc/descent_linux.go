package proc

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/exec/shield"
)

// mostAncestors limits how many ancestors are checked.
const mostAncestors = 64

// children are the processes that this host has started, by number.
var children struct {
	sync.Mutex
	born map[int]string // distinguishes each from a later process with its number
}

func bear(pid int) {
	children.Lock()
	defer children.Unlock()
	if children.born == nil {
		children.born = map[int]string{}
	}
	children.born[pid] = procid.Of(pid)
}

func bury(pid int) {
	children.Lock()
	defer children.Unlock()
	delete(children.born, pid)
}

// IsChild reports whether a process of this host's user is a child of this or another host, or descends
// from one. It checks the mounts that shield has made in its namespace, which it cannot undo, the group
// in which it was born, its ancestors, and the mark in its environment. A process that cannot be
// checked counts as a child.
func IsChild(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return true
	}
	for i := range mostAncestors {
		if pid <= 1 || pid == os.Getpid() {
			return false
		}
		shielded, known := shieldedFrom(own, pid)
		if shielded || !known && i == 0 || inOurGroup(pid) || marked(pid) || isBorn(pid) {
			return true
		}
		parent, _, there := parentOf(pid)
		if !there {
			return true
		}
		pid = parent
	}
	return true
}

// shieldedFrom reports whether a process is in a namespace that shield has made, or in a copy of one;
// known is false if this user may not read it, which a process can cause itself.
func shieldedFrom(own string, pid int) (shielded, known bool) {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return false, false
	}
	if theirs == own {
		return false, true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false, false
	}
	return bytes.Contains(b, []byte(" - tmpfs "+shield.Source+" ")), true
}

func isBorn(pid int) bool {
	children.Lock()
	defer children.Unlock()
	born, ok := children.born[pid]
	return ok && (born == "" || born == procid.Of(pid))
}

// inOurGroup reports whether a process is in a group that a host has made.
func inOurGroup(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		for part := range strings.SplitSeq(f[2], "/") {
			if strings.HasPrefix(part, keptPrefix) || ofHost(part) {
				return true
			}
		}
	}
	return false
}

// ofHost reports whether a group has a name made by leafName. The prefix alone does not suffice,
// because other groups may have it, for example a service called gatehouse-main.
func ofHost(group string) bool {
	rest, ok := strings.CutPrefix(group, leafPrefix)
	return ok && strings.Count(rest, "-") == 3 && rest[0] >= '0' && rest[0] <= '9'
}

func marked(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && (bytes.HasPrefix(b, []byte(mark+"=")) || bytes.Contains(b, []byte("\x00"+mark+"=")))
}
