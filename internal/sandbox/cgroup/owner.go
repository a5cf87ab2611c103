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
	"time"

	"gatehouse/internal/exec/cpushare"

	"golang.org/x/sys/unix"
)

// Assign moves the processes to a group of a principal, so that all its programs and sandboxes together get as much of
// the processors as those of another one; see cpushare. It does so in version 1 alone, and once.
func (g *Group) Assign(principal string) error {
	g.moving.Lock()
	defer g.moving.Unlock()
	from := g.folder("cpu")
	if g.share == nil || g.assigned || from == "" {
		return nil
	}
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
