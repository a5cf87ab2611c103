package proc

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/exec/keeper"
	"gatehouse/internal/exec/procid"

	"golang.org/x/sys/unix"
)

// cgroups holds the folders in which this host can make cgroups.
type cgroups struct {
	v2      string // version 2; "" if there is none
	counts  bool   // version 2 counts processes
	divides bool   // version 2 divides the processors
	pids    string // version 1, if it counts processes; "" otherwise
	cpu     string // version 1, if it divides the processors; "" otherwise

	noKeeper bool // tests set it, to do with the mark alone
}

// hostGroups is looked up once, because a host stays in its groups. It first ends the processes that a
// killed host left in them.
var hostGroups = sync.OnceValue(func() cgroups {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return cgroups{}
	}
	g := findGroups(string(mounts), string(own))
	if parent := delegated(g.v2); parent != "" {
		g.v2 = parent
	}
	for _, path := range []*string{&g.v2, &g.pids} {
		if !usable(*path) {
			*path = ""
			continue
		}
		cpushare.Sweep(*path)
		sweepLeft(*path)
	}
	if cpushare.Sweep(g.cpu); !usable(g.cpu) {
		g.cpu = ""
	}
	if g.v2 != "" {
		b, _ := os.ReadFile(filepath.Join(g.v2, "cgroup.subtree_control"))
		g.counts = slices.Contains(strings.Fields(string(b)), "pids")
		g.divides = slices.Contains(strings.Fields(string(b)), "cpu")
	}
	return g
})

// Sweep ends the processes that killed hosts left behind. A host calls it once when it starts;
// otherwise its first child triggers it.
func Sweep() {
	if g := hostGroups(); g.v2 == "" && g.pids == "" {
		sweepMarked()
		keeper.Sweep()
	}
}

// watchGroups has the groups of this host ended when it has ended, once there may be
// some.
var watchGroups = sync.OnceFunc(func() {
	var folders, kept []string
	for _, folder := range []string{hostGroups().v2, hostGroups().pids, hostGroups().cpu} {
		if folder != "" {
			folders, kept = append(folders, folder), append(kept, cpushare.Kept(folder))
		}
	}
	// Without a keeper the next host ends the groups.
	_ = keeper.Watch(folders, leafPrefix+procid.Self()+"-", kept)
})

// findGroups determines the position of this process in the hierarchies from the mounts and groups that
// the kernel reports.
func findGroups(mounts, own string) (g cgroups) {
	in := map[string]string{} // controllers -> path
	for line := range strings.Lines(own) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			in[f[1]] = f[2]
		}
	}
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		f, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(rest) < 3 {
			continue
		}
		root, at := f[3], f[4]
		switch {
		case rest[0] == "cgroup2":
			g.v2 = below(at, root, in[""])
		case rest[0] == "cgroup":
			for controller, folder := range map[string]*string{"pids": &g.pids, "cpu": &g.cpu} {
				if strings.Contains(","+rest[2]+",", ","+controller+",") {
					*folder = below(at, root, pathOf(in, controller))
				}
			}
		}
	}
	return g
}

// pathOf returns the group of this process for a controller of version 1.
func pathOf(in map[string]string, controller string) string {
	for controllers, path := range in {
		if strings.Contains(","+controllers+",", ","+controller+",") {
			return path
		}
	}
	return ""
}

// delegated returns the group of version 2 above this one if systemd gave it to the host (Delegate=, with
// DelegateSubgroup=), or "". There is no process in it, so that the groups in it can have its controllers.
func delegated(own string) string {
	parent, value := filepath.Dir(own), make([]byte, 2)
	n, err := unix.Getxattr(parent, "user.delegate", value)
	if err != nil {
		n, err = unix.Getxattr(parent, "trusted.delegate", value)
	}
	if own == "" || err != nil || string(value[:n]) != "1" {
		return ""
	}
	for _, controller := range []string{"cpu", "pids", "memory"} {
		put(parent, "cgroup.subtree_control", "+"+controller)
	}
	return parent
}

// below returns the folder of a group if only the part below root is mounted.
func below(at, root, path string) string {
	rel, err := filepath.Rel(root, path)
	if path == "" || strings.Contains(path, "..") || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.Join(at, rel)
}

// usable reports whether a group can be made in a folder, by making one.
func usable(path string) bool {
	if path == "" {
		return false
	}
	leaf := filepath.Join(path, leafName())
	return os.Mkdir(leaf, 0o755) == nil && syscall.Rmdir(leaf) == nil
}

const leafPrefix = "gatehouse-"

// leafName returns a unique name that contains the name of this process.
func leafName() string { return leafPrefix + procid.Self() + "-" + rand.Text() }

// sweepLeft ends the processes that ended hosts left in groups of this folder, if they are in the same
// PID namespace.
func sweepLeft(path string) {
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if !procid.Left(leafPrefix, e.Name()) {
			continue
		}
		left := whole{v1: filepath.Join(path, e.Name())}
		left.kill()
		left.close()
	}
}
