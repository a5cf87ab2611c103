//go:build linux

// Package procid names a process so that a number that is somebody else's by
// now is told apart: by its number, by when it began, and by the space of
// process numbers in which it has that number.
//
// A name is what a host puts into the names of folders and groups that the next
// host has to take away when this one could not.
package procid

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Self is the name of this process.
var Self = sync.OnceValue(func() string { return Of(os.Getpid()) })

// Of names a process; "" when it is not there or does not tell.
func Of(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	began := began(string(b))
	if began == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-%s", space(), pid, began)
}

// space is that of this process's numbers; "" when it is not known.
func space() string {
	link, _ := os.Readlink("/proc/self/ns/pid")
	return strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
}

// began is when a process began, in ticks since the machine did, of what the
// kernel tells about it; "" when it does not.
func began(stat string) string {
	const startTime = 22 - 3 // the fields after the name, which may hold anything, begin with the third
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) <= startTime {
		return ""
	}
	return f[startTime]
}

// Alive reports whether the process of this name may still be there. It does so
// too of a name that it cannot judge, so that nobody's things are taken away.
func Alive(name string) bool {
	pid, in := numberOf(name)
	if pid == 0 || in == "" || in != space() {
		return true
	}
	now := Of(pid)
	if now == name {
		return true
	}
	// It is gone when its number is somebody else's, or nobody's.
	return now == "" && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// parts are how many a name has; a dash is between two.
const parts = 3

// Left reports whether a thing was left behind by a process that is gone: it is
// called prefix, the name of the process, a dash, and anything.
func Left(prefix, called string) bool {
	rest, ok := strings.CutPrefix(called, prefix)
	f := strings.SplitN(rest, "-", parts+1)
	if !ok || len(f) != parts+1 || f[parts] == "" {
		return false
	}
	return !Alive(strings.Join(f[:parts], "-"))
}

// numberOf is the process number in a name, 0 when it is none, and the space it
// is a number of.
func numberOf(name string) (pid int, space string) {
	f := strings.Split(name, "-")
	if len(f) != parts {
		return 0, ""
	}
	n, err := strconv.Atoi(f[1])
	if err != nil || n < 1 {
		return 0, ""
	}
	return n, f[0]
}
