package proc

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"gatehouse/internal/exec/keeper"
	"gatehouse/internal/exec/procid"
)

// cgroups are the folders below which groups of our own can be made.
type cgroups struct {
	v2     string // version 2; "" when there is none
	counts bool   // processes are counted in version 2
	pids   string // version 1, where processes are counted; "" when there is none

	noKeeper bool // tests set it, to do with the mark alone
}

// hostGroups is looked up once: a host stays in its groups. What an earlier
// host that was killed left in them is ended first.
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
	for _, path := range []*string{&g.v2, &g.pids} {
		if !usable(*path) {
			*path = ""
			continue
		}
		sweepLeft(*path)
	}
	if g.v2 != "" {
		b, _ := os.ReadFile(filepath.Join(g.v2, "cgroup.subtree_control"))
		g.counts = slices.Contains(strings.Fields(string(b)), "pids")
	}
	return g
})

// Sweep ends what hosts left behind that were killed. A host does so once, when
// it starts; otherwise the first child it starts does.
func Sweep() {
	if g := hostGroups(); g.v2 == "" && g.pids == "" {
		sweepMarked()
	}
}

// watchGroups has the groups of this host ended when it has ended, once there may be
// some.
var watchGroups = sync.OnceFunc(func() {
	var folders []string
	for _, folder := range []string{hostGroups().v2, hostGroups().pids} {
		if folder != "" {
			folders = append(folders, folder)
		}
	}
	// Without a keeper the next host ends the groups.
	_ = keeper.Watch(folders, leafPrefix+procid.Self()+"-")
})

// findGroups reads where this process is in the hierarchies, from what the
// kernel tells of its mounts and groups.
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
		case rest[0] == "cgroup" && strings.Contains(","+rest[2]+",", ",pids,"):
			for controllers, path := range in {
				if strings.Contains(","+controllers+",", ",pids,") {
					g.pids = below(at, root, path)
				}
			}
		}
	}
	return g
}

// below is a group's folder where only what is below root is mounted.
func below(at, root, path string) string {
	rel, err := filepath.Rel(root, path)
	if path == "" || strings.Contains(path, "..") || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.Join(at, rel)
}

// usable tries whether a group can be made.
func usable(path string) bool {
	if path == "" {
		return false
	}
	leaf := filepath.Join(path, leafName())
	return os.Mkdir(leaf, 0o755) == nil && syscall.Rmdir(leaf) == nil
}

const leafPrefix = "gatehouse-"

// leafName returns a unique name that says whose the group is.
func leafName() string { return leafPrefix + procid.Self() + "-" + rand.Text() }

// sweepLeft ends what hosts left behind that are gone: of this folder, and of
// the same space of process numbers.
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
