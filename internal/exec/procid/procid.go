// Package procid says whether a process is alive. It names a process so that
// another one that has the same number by now is told apart: by the number, by
// when the process began, and by the space of process numbers in which it has
// that number.
//
// A host puts its name into the names of folders and groups, which the next host
// removes if this one could not.
package procid

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Self is the name of this process.
var Self = sync.OnceValue(func() string { return Of(os.Getpid()) })

// Of names a process, also one that has ended and whose parent has not waited
// for it. It returns "" if there is no such process or if the system does not
// say when it began.
func Of(pid int) string {
	s := statusOf(pid)
	if s.began == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d-%s", space(), pid, s.began)
}

// status is what the system says of a process number.
type status struct {
	began string // "" if the system does not say
	ended bool   // there is no such process, or only its parent has not waited for it
}

// Alive reports whether the process of this name may be alive. It does so too of
// a name that it cannot judge, because what belongs to a live process must not be
// removed.
func Alive(name string) bool {
	pid, in := numberOf(name)
	if pid == 0 || in == "" || in != space() {
		return true
	}
	s := statusOf(pid)
	// Without a time the number alone has to do.
	return !s.ended && (s.began == "" || strings.HasSuffix(name, "-"+s.began))
}

// Watch returns a function that reports whether the process that has this number
// now has ended. What has the number later does not count.
func Watch(pid int) (ended func() bool) {
	name := Of(pid)
	if name == "" {
		return func() bool { return statusOf(pid).ended }
	}
	return func() bool { return !Alive(name) }
}

// parts are how many a name has; a dash is between two.
const parts = 3

// Left reports whether a thing was left by a process that has ended: it is called
// prefix, the name of the process, a dash, and anything.
func Left(prefix, called string) bool {
	rest, ok := strings.CutPrefix(called, prefix)
	f := strings.SplitN(rest, "-", parts+1)
	if !ok || len(f) != parts+1 || f[parts] == "" {
		return false
	}
	return !Alive(strings.Join(f[:parts], "-"))
}

// numberOf is the process number in a name, 0 if it is none, and the space it is
// a number of.
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
