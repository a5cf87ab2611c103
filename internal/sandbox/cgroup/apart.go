//go:build linux

package cgroup

import (
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// apart are the groups of NewApart.
var apart struct {
	mu     sync.Mutex
	groups []*Group
	unused chan struct{} // closed when the last group has left; nil without groups
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
	if apart.groups = append(apart.groups, g); apart.unused == nil {
		apart.unused = make(chan struct{})
		go watchApart(apart.unused)
	}
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
	if len(apart.groups) == 0 && apart.unused != nil {
		close(apart.unused)
		apart.unused = nil
	}
	return weighApart()
}

const (
	watchPause = 200 * time.Millisecond
	busyPart   = 4  // a group is busy if it uses more than a quarter of a processor
	calmRounds = 10 // after which a group is no longer busy
)

// watched is what watchApart knows of a group.
type watched struct {
	used time.Duration // of the processors
	at   time.Time
	calm int // rounds since it was busy; calmRounds and more mean that it is not
}

// watchApart gives the threads of groups that calculate long slices, see cpushare.SetBusy, until there are no groups.
func watchApart(unused <-chan struct{}) {
	tick := time.NewTicker(watchPause)
	defer tick.Stop()
	known := map[*Group]watched{}
	for {
		select {
		case <-unused:
			return
		case <-tick.C:
		}
		apart.mu.Lock()
		groups := slices.Clone(apart.groups)
		apart.mu.Unlock()
		next := make(map[*Group]watched, len(groups))
		for _, g := range groups {
			before, has := known[g]
			now := watched{used: g.cpu(), at: time.Now(), calm: calmRounds}
			if has {
				now.calm = before.calm + 1
				if used := now.used - before.used; used*busyPart > now.at.Sub(before.at) {
					now.calm = 0
				}
			}
			switch {
			case now.calm < calmRounds: // also threads that have begun since the last round
				g.setBusy(true)
			case has && before.calm < calmRounds:
				g.setBusy(false)
			}
			next[g] = now
		}
		known = next
	}
}

func (g *Group) setBusy(busy bool) {
	dir, file := g.folder("cpu"), "tasks"
	if slices.Contains(g.hierarchy.in2, "cpu") {
		dir, file = g.v2, "cgroup.threads"
	}
	b, _ := readFile(dir, file) // a group that is being removed may be gone
	for f := range strings.FieldsSeq(string(b)) {
		if id, err := strconv.Atoi(f); err == nil && id > 1 {
			cpushare.SetBusy(id, busy)
		}
	}
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
