// Package shield protects the host's own files from its child processes: settings with secrets, keys, stores, the
// local token, sockets.
//
// On Linux a thread that has given up access to those files starts each child. A host with CAP_SYS_ADMIN starts it
// in a mount namespace in which an empty folder covers each of them. A Landlock domain keeps the child from
// changing mounts and from tracing processes outside the domain. CAP_SYS_PTRACE is removed from its bounding set,
// because otherwise root could trace the thread that started it. Any other host has only Landlock, which can only
// allow: it allows every file outside the paths to closed folders, but nothing that is created on those paths
// later, and no_new_privs disables sudo.
//
// Files are closed to every child of this process, because the kernel knows one identity per process, however many
// hosts it contains.
package shield

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// How names the mechanism that closes files to children.
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

// closed are the files that are closed to children. Its lock is never held together with another.
var closed struct {
	sync.Mutex
	paths map[string]int // absolute and without links; how often each was closed
	open  map[string]int // folders below them that stay open
	dirty bool           // changed since the kernel was told
	told  prepared
}

// Close closes files and folders to children that are started from now on. What is in open, folders below them,
// stays accessible. A missing folder is created when the first child starts, with mode 0700, because a child could
// create it otherwise; "" and files without a folder are ignored. release undoes the call; it may be called once.
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

// Closed returns the files and folders that are closed to children, for those that are kept from them in another way.
func Closed() (paths []string) {
	closed.Lock()
	defer closed.Unlock()
	for p := range closed.paths {
		paths = append(paths, strings.TrimSuffix(p, "/"))
	}
	slices.Sort(paths)
	return paths
}

// resolved returns an absolute path without links, as far as the path exists; "" if it cannot be closed.
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

// Own are folders below closed ones that stay accessible to one child.
type Own struct {
	Write []string // to read and write
	Read  []string // to read and run alone; not below one of Write
}

// Possible returns the mechanism that this process can use.
func Possible() How { return possible() }
