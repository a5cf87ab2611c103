// Package shield keeps the host's own files from its child processes: settings
// with secrets, keys, stores, the local token, sockets.
//
// On Linux a child is started by a thread that has given those files up for
// good. A host that has CAP_SYS_ADMIN starts it in a mount namespace in which
// an empty folder lies over each of them; a Landlock domain keeps the child
// from changing mounts and from tracing processes outside the domain, and
// CAP_SYS_PTRACE leaves its bounding set, because otherwise root could read
// the thread that started it. Any other host has Landlock alone, which can
// only allow: every file beside the way to a closed folder is allowed, what is
// created on that way later is not, and no_new_privs ends sudo.
//
// What is closed is so for every child of this process, because a process has
// one identity for the kernel, however many hosts it holds.
package shield

import (
	"path/filepath"
	"slices"
	"sync"
)

// How says what closes files to children.
type How int

const (
	None      How = iota // nothing can: Landlock is missing
	Landlock             // Landlock alone
	Namespace            // a mount namespace, and Landlock
)

func (h How) String() string {
	switch h {
	case Landlock:
		return "Landlock"
	case Namespace:
		return "a mount namespace and Landlock"
	}
	return "nothing"
}

// closed are the files that children are kept from. Order of locks: it is
// taken alone.
var closed struct {
	sync.Mutex
	paths map[string]int // absolute and without links; how often each was closed
	open  map[string]int // folders below them that stay open
	dirty bool           // changed since the kernel was told
	told  prepared
}

// Close keeps children that are started from now on from files and folders.
// What lies in open, folders below them, stays reachable. A folder that is
// missing is made when the first child starts, with mode 0700, because a child
// could make it otherwise; "" and what has no folder is left out. release takes
// the call back; it may be called once.
func Close(folders, files, open []string) (release func()) {
	closed.Lock()
	defer closed.Unlock()
	if closed.paths == nil {
		closed.paths, closed.open = map[string]int{}, map[string]int{}
	}
	var paths, kept []string
	for _, p := range folders {
		if p = resolved(p); p != "" {
			paths = append(paths, p+"/")
		}
	}
	for _, p := range files {
		if p = resolved(p); p != "" {
			paths = append(paths, p)
		}
	}
	for _, p := range open {
		if p = resolved(p); p != "" {
			kept = append(kept, p)
		}
	}
	count := func(by int) {
		closed.dirty = true
		for _, one := range []struct {
			in  map[string]int
			all []string
		}{{closed.paths, paths}, {closed.open, kept}} {
			for _, p := range one.all {
				if one.in[p] += by; one.in[p] <= 0 {
					delete(one.in, p)
				}
			}
		}
	}
	count(1)
	return func() {
		closed.Lock()
		defer closed.Unlock()
		count(-1)
	}
}

// resolved is a path from the top without links, as far as it exists; "" for
// what cannot be closed.
func resolved(p string) string {
	if p == "" {
		return ""
	}
	p, err := filepath.Abs(p)
	if err != nil || filepath.Dir(p) == p {
		return ""
	}
	var rest []string
	for at := p; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			slices.Reverse(rest)
			return filepath.Join(append([]string{real}, rest...)...)
		}
		if filepath.Dir(at) == at {
			return p
		}
		rest = append(rest, filepath.Base(at))
	}
}

// Own are folders below closed ones that stay open to one child.
type Own struct {
	Write []string // to read and write
	Read  []string // to read and run alone; not below one of Write
}

// Possible says what this process could close files with.
func Possible() How { return possible() }
