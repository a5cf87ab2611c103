//go:build linux

// Package cgroup enforces the limits of all processes of a sandbox together, with the machine's control groups
// of version 2, version 1, or both at once.
package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

const (
	prefix    = "gatehouse-sandbox-"
	cpuPeriod = 100_000         // microseconds
	emptyWait = 5 * time.Second // how long the kernel may take to empty a group
)

// controllers are those that enforce limits.
var controllers = []string{"memory", "pids", "cpu"}

// Hierarchy is the groups of the machine in which groups of sandboxes can be created. The zero value has none.
type Hierarchy struct {
	v2    string            // folder of version 2; "" if there is none
	in2   []string          // controllers of version 2
	v1    map[string]string // controller to its folder in version 1
	self  map[string]string // controller to the folder of this process in version 1
	Notes []string          // why a limit cannot be enforced
}

// Discover finds the groups in which groups can be created. It removes the groups that ended hosts left there.
func Discover() *Hierarchy {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(err1, err2); err != nil {
		return &Hierarchy{Notes: []string{err.Error()}}
	}
	p := parseHierarchy(string(mounts), string(own), usable)
	for _, dir := range p.folders() {
		sweepGroups(dir)
	}
	cpushare.Sweep(p.v1["cpu"])
	return p
}

// parseHierarchy parses the kernel's lists of mounts and of this process's groups.
func parseHierarchy(mounts, own string, usable func(dir string) error) *Hierarchy {
	p := &Hierarchy{v1: map[string]string{}, self: map[string]string{}}
	in := map[string]string{} // controller to path; "" stands for version 2
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			in[c] = f[2]
		}
	}
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		f, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(rest) < 3 {
			continue
		}
		switch root, at := f[3], f[4]; rest[0] {
		case "cgroup2":
			p.findV2(at, below(at, root, in[""]), usable)
		case "cgroup":
			for _, c := range append(slices.Clone(controllers), freezer) {
				if path, ok := in[c]; ok && slices.Contains(strings.Split(rest[2], ","), c) {
					p.findV1(c, below(at, root, path), usable)
				}
			}
		}
	}
	if p.v2 != "" {
		delete(p.v1, freezer)
	}
	for _, c := range controllers {
		if p.v1[c] == "" && !slices.Contains(p.in2, c) {
			p.Notes = append(p.Notes, "no control group for "+c+" can be created")
		}
	}
	return p
}

// below returns the folder of a group in a mount that shows only the groups below root.
func below(at, root, path string) string {
	rel, err := filepath.Rel(root, path)
	if path == "" || strings.Contains(path, "..") || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.Join(at, rel)
}

// findV2 finds the nearest group, from this process's own upwards, in which groups can be created, preferring
// one that delegates the controllers: a group with processes in it, as this process's own, cannot.
func (p *Hierarchy) findV2(mount, own string, usable func(string) error) {
	if own == "" {
		return
	}
	best := -1
	for dir := own; strings.HasPrefix(dir, mount); dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			continue
		}
		var has []string
		for c := range strings.FieldsSeq(string(b)) {
			if slices.Contains(controllers, c) {
				has = append(has, c)
			}
		}
		if len(has) <= best {
			continue
		}
		if err := usable(dir); err != nil {
			p.Notes = append(p.Notes, err.Error())
			continue
		}
		p.v2, p.in2, best = dir, has, len(has)
	}
}

func (p *Hierarchy) findV1(controller, dir string, usable func(string) error) {
	if dir == "" {
		return
	}
	if err := usable(dir); err != nil {
		p.Notes = append(p.Notes, err.Error())
		return
	}
	p.v1[controller], p.self[controller] = dir, dir
}

// usable checks that a group can be created.
func usable(dir string) error {
	leaf := filepath.Join(dir, newName())
	if err := unix.Mkdir(leaf, 0o755); err != nil {
		return fmt.Errorf("mkdir(%s): %w", leaf, err)
	}
	return unix.Rmdir(leaf)
}

// folders returns the folders in which groups are created.
func (p *Hierarchy) folders() (all []string) {
	if p.v2 != "" {
		all = append(all, p.v2)
	}
	for _, dir := range p.v1 {
		if !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return all
}

// Enforcement returns how the limit of a controller is enforced.
func (p *Hierarchy) Enforcement(controller string) sandbox.Enforcement {
	switch {
	case slices.Contains(p.in2, controller):
		return sandbox.ByCgroup2
	case p.v1[controller] != "":
		return sandbox.ByCgroup1
	}
	return sandbox.NotEnforced
}

// newName returns a unique name that identifies the host process.
func newName() string { return prefix + procid.Self() + "-" + rand.Text() }

// sweepGroups removes groups that ended hosts left behind.
func sweepGroups(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !procid.Left(prefix, e.Name()) {
			continue
		}
		g := Group{dirs: []string{filepath.Join(dir, e.Name())}}
		g.Kill()
		g.Remove()
	}
}
