//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/exec/cpushare"

	"golang.org/x/sys/unix"
)

// owners are the sandboxes of each principal in groups of version 2, of all drivers.
var owners = struct {
	mu     sync.Mutex
	groups map[string][]*Group
}{groups: map[string][]*Group{}}

// Assign has all programs and sandboxes of a principal together get as much of the processors as those of another one;
// see cpushare. In version 1 it moves the processes to a group of the principal. In version 2, where memory would stay
// with the group that a process has left, its sandboxes divide one weight among them. It does so once.
func (g *Group) Assign(principal string) error {
	g.moving.Lock()
	defer g.moving.Unlock()
	switch {
	case g.assigned:
		return nil
	case slices.Contains(g.hierarchy.in2, "cpu"):
		g.assigned, g.owner = true, principal
		owners.mu.Lock()
		defer owners.mu.Unlock()
		owners.groups[principal] = append(owners.groups[principal], g)
		return divide(owners.groups[principal])
	case g.share == nil || g.folder("cpu") == "":
		return nil
	}
	return g.move(principal)
}

// disown gives the other sandboxes of the principal the weight of this one.
func (g *Group) disown() error {
	if g.owner == "" {
		return nil
	}
	owners.mu.Lock()
	defer owners.mu.Unlock()
	left := slices.DeleteFunc(owners.groups[g.owner], func(o *Group) bool { return o == g })
	if owners.groups[g.owner] = left; len(left) == 0 {
		delete(owners.groups, g.owner)
	}
	g.owner = ""
	return divide(left)
}

// divide gives the groups of a principal equal parts of what a principal has. A group whose host is removing it may be
// gone.
func divide(groups []*Group) error {
	var all []error
	for _, g := range groups {
		weight := max(cpushare.WeightV2/len(groups), 1)
		if err := writeFile(g.v2, "cpu.weight", strconv.Itoa(weight)+"\n"); !errors.Is(err, unix.ENOENT) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// move moves the processes to a group of a principal in version 1. The caller holds g.moving.
func (g *Group) move(principal string) error {
	from := g.folder("cpu")
	share, err := cpushare.Join(cpushare.Folder{Path: g.hierarchy.v1["cpu"]}, principal, false)
	if err != nil {
		return err
	}
	to := filepath.Join(share.Dir(), filepath.Base(from))
	if err := g.makeLike(from, to); err != nil {
		share.Leave()
		return err
	}
	g.assigned = true
	g.mu.Lock()
	g.v1 = maps.Clone(g.v1)
	g.v1["cpu"] = to
	g.dirs = append(slices.Clip(g.dirs), to)
	g.mu.Unlock()
	old := g.share
	g.share = share
	if err := moveAll(from, to); err != nil {
		g.left = old // removed with the sandbox
		return err
	}
	g.mu.Lock()
	g.dirs = slices.DeleteFunc(slices.Clone(g.dirs), func(d string) bool { return d == from })
	g.mu.Unlock()
	old.Leave()
	return nil
}

// makeLike makes a group for the processor with the limit of another one.
func (g *Group) makeLike(from, to string) error {
	const quota = "cpu.cfs_quota_us"
	limit, err := readFile(from, quota)
	if err != nil {
		return err
	}
	if err := unix.Mkdir(to, 0o755); err != nil {
		return fmt.Errorf("mkdir(%s): %w", to, err)
	}
	if err := writeFile(to, quota, strings.TrimSpace(string(limit))); err != nil {
		unix.Rmdir(to)
		return err
	}
	return nil
}

// moveAll moves the processes of a group of version 1 to another one until it is empty, and removes it.
func moveAll(from, to string) error {
	for end := time.Now().Add(emptyWait); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
		if err != nil {
			return err
		}
		for f := range strings.FieldsSeq(string(b)) {
			if _, err := strconv.Atoi(f); err != nil || f == "0" {
				continue
			}
			if err := writeFile(to, "cgroup.procs", f); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		err = unix.Rmdir(from)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("rmdir(%s): %w", from, err)
		}
	}
}

// folder returns the group of a controller of version 1.
func (g *Group) folder(controller string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.v1[controller]
}

// folders returns all groups.
func (g *Group) folders() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dirs
}
