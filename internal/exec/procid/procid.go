// Package procid reports whether a process is alive. It names a process by its number, its start time
// and the PID namespace of the number, so that a later process with the same number has another name.
//
// A host puts its name into the names of folders and groups, which the next host removes if the first
// could not.
package procid

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Self returns the name of this process.
var Self = sync.OnceValue(func() string { return Of(os.Getpid()) })

// Of returns the name of a process, including one that has ended and was not waited for. It returns ""
// if the process does not exist or the system does not report its start time.
func Of(pid int) string {
	s := statusOf(pid)
	if s.began == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-%s", space(), pid, s.began)
}

// status is what the system reports about a process number.
type status struct {
	began string // "" if the system does not report it
	ended bool   // the process does not exist, or is a zombie
}

// Alive reports whether the process with this name may be alive. It returns true for a name that it
// cannot evaluate, because data of a running process must not be removed.
func Alive(name string) bool {
	pid, in := numberOf(name)
	if pid == 0 || in == "" || in != space() {
		return true
	}
	s := statusOf(pid)
	// Without a start time only the number is compared.
	return !s.ended && (s.began == "" || strings.HasSuffix(name, "-"+s.began))
}

// Watch returns a function that reports whether the process that has this number now has ended. A later
// process with that number does not count.
func Watch(pid int) (ended func() bool) {
	name := Of(pid)
	if name == "" {
		return func() bool { return statusOf(pid).ended }
	}
	return func() bool { return !Alive(name) }
}

// parts is the number of parts of a name, separated by dashes.
const parts = 3

// Left reports whether a file or group was left by a process that has ended: its name is prefix, the
// name of the process, a dash, and any text.
func Left(prefix, called string) bool {
	rest, ok := strings.CutPrefix(called, prefix)
	f := strings.SplitN(rest, "-", parts+1)
	if !ok || len(f) != parts+1 || f[parts] == "" {
		return false
	}
	return !Alive(strings.Join(f[:parts], "-"))
}

// numberOf returns the process number in a name, 0 if the name is not valid, and its PID namespace.
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
