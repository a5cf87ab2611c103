//go:build linux

// Package cgroup holds everything in one sandbox to its limits together, in
// whatever layout the machine's control groups have: version 2, version 1, or
// both at once.
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

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

const (
	prefix    = "gatehouse-sandbox-"
	cpuPeriod = 100_000         // microseconds
	emptyWait = 5 * time.Second // for the kernel to let go of a group
)

// controllers are what limits need, each for its own.
var controllers = []string{"memory", "pids", "cpu"}

// Place is where groups of sandboxes can be made. The zero value is nowhere.
type Place struct {
	v2    string            // "" when there is none
	in2   []string          // controllers that v2 has
	v1    map[string]string // controller to the folder in version 1
	self  map[string]string // controller to this process's own folder in version 1
	Notes []string          // why something cannot be held
}

// Find looks where groups can be made, and ends what hosts that are gone left
// there.
func Find() *Place {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(err1, err2); err != nil {
		return &Place{Notes: []string{err.Error()}}
	}
	p := find(string(mounts), string(own), usable)
	for _, dir := range p.folders() {
		sweep(dir)
	}
	return p
}

// find reads where this process is, from what the kernel tells of its mounts
// and groups.
func find(mounts, own string, usable func(dir string) error) *Place {
	p := &Place{v1: map[string]string{}, self: map[string]string{}}
	in := map[string]string{} // controller to path; "" is version 2
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
			p.Notes = append(p.Notes, "no control group for "+c+" can be made")
		}
	}
	return p
}

// below is a group's folder where only what is below root is mounted.
func below(at, root, path string) string {
	rel, err := filepath.Rel(root, path)
	if path == "" || strings.Contains(path, "..") || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.Join(at, rel)
}

// findV2 takes the nearest group from our own upward below which groups can be
// made, preferring one that hands on the controllers: a group that has
// processes of its own, as ours does, cannot.
func (p *Place) findV2(mount, own string, usable func(string) error) {
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

func (p *Place) findV1(controller, dir string, usable func(string) error) {
	if dir == "" {
		return
	}
	if err := usable(dir); err != nil {
		p.Notes = append(p.Notes, err.Error())
		return
	}
	p.v1[controller], p.self[controller] = dir, dir
}

// usable tries whether a group can be made.
func usable(dir string) error {
	leaf := filepath.Join(dir, name())
	if err := unix.Mkdir(leaf, 0o755); err != nil {
		return fmt.Errorf("mkdir(%s): %w", leaf, err)
	}
	return unix.Rmdir(leaf)
}

// folders are those in which groups are made.
func (p *Place) folders() (all []string) {
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

// Held tells how a controller's limit is held.
func (p *Place) Held(controller string) sandbox.Held {
	switch {
	case slices.Contains(p.in2, controller):
		return sandbox.ByCgroup2
	case p.v1[controller] != "":
		return sandbox.ByCgroup1
	}
	return sandbox.NotHeld
}

// name is one nobody else has, and tells whose the group is.
func name() string { return prefix + procid.Self() + "-" + rand.Text() }

// sweep ends what hosts left behind that are gone.
func sweep(dir string) {
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
