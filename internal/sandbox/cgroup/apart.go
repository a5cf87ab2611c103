//go:build linux

package cgroup

import (
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// apart are the groups of NewApart.
var apart struct {
	mu     sync.Mutex
	groups []*Group
}

// NewApart is New for a sandbox that gets processors beside the other programs of this host, not among them. What
// calculates in one group of all uses up what they have together, and each step of a call to another one in it would
// wait until that group may run again. Such groups have a third of one thread of the host each, and less if they are
// many.
func (p *Hierarchy) NewApart(l sandbox.Limits) (*Group, error) {
	g := &Group{hierarchy: p, v1: map[string]string{}, apart: true}
	err := g.createFolders(l)
	if err == nil {
		err = joinApart(g)
	}
	if err != nil {
		g.Remove()
		return nil, err
	}
	return g, nil
}

func joinApart(g *Group) error {
	apart.mu.Lock()
	defer apart.mu.Unlock()
	apart.groups = append(apart.groups, g)
	return weighApart()
}

// leaveApart gives the other groups of NewApart what this one had.
func (g *Group) leaveApart() error {
	if !g.apart {
		return nil
	}
	apart.mu.Lock()
	defer apart.mu.Unlock()
	apart.groups = slices.DeleteFunc(apart.groups, func(o *Group) bool { return o == g })
	return weighApart()
}

// leastApart is the part of the weight of one group that it has at least.
const leastApart = 5

// weighApart gives the groups of NewApart their weights: together twice that of all other programs, but none more than
// a third of a thread of the host. A group whose host is removing it may be gone. apart.mu is held.
func weighApart() error {
	divided := func(one, all int) string {
		return strconv.Itoa(min(max(all/max(len(apart.groups), 1), one/leastApart), one)) + "\n"
	}
	var all []error
	for _, g := range apart.groups {
		var err error
		switch {
		case slices.Contains(g.hierarchy.in2, "cpu"):
			err = writeFile(g.v2, "cpu.weight", divided(cpushare.WeightV2, 2*cpushare.WeightV2))
		case g.folder("cpu") != "":
			err = writeFile(g.folder("cpu"), "cpu.shares",
				divided(cpushare.Weight, 2*cpushare.Weight*runtime.NumCPU()))
		}
		if !errors.Is(err, unix.ENOENT) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
