package proc

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/exec/procid"
)

const (
	ticks   = 100  // of the kernel's process clock per second, on every platform that Go supports
	mostFDs = 4096 // open files of one process that are examined
)

// Usage returns the sum of the present usage of the child and its descendants; without Whole, of the
// child's group. It reads a few small files for each process.
func (p *Process) Usage() (u Usage, err error) { return usageOf(&p.whole, p.Pid()) }

func usageOf(w *whole, leader int) (u Usage, err error) {
	pids := w.members()
	if len(pids) == 0 {
		pids = groupMembers(leader)
	}
	sockets := listening(leader)
	for _, pid := range pids {
		s, ok := statOf(pid)
		if !ok {
			continue
		}
		u.Processes++
		u.CPU += s.cpu
		u.Memory += s.memory
		if len(sockets) > 0 {
			u.Ports = append(u.Ports, portsOf(pid, sockets)...)
		}
	}
	slices.Sort(u.Ports)
	u.Ports = slices.Compact(u.Ports)
	return u, nil
}

// UsageBelow describes what a process and all of its descendants use, which may be in namespaces of their own.
func UsageBelow(top int) (u Usage, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return u, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if parent, zombie, there := parentOf(pid); there && !zombie {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	for todo := []int{top}; len(todo) > 0; todo = todo[1:] {
		if s, ok := statOf(todo[0]); ok {
			u.Processes++
			u.CPU += s.cpu
			u.Memory += s.memory
		}
		todo = append(todo, children[todo[0]]...)
	}
	if u.Processes == 0 {
		return u, os.ErrProcessDone
	}
	return u, nil
}

type stats struct {
	group  int
	cpu    time.Duration
	memory int64
}

// statOf reads the statistics of a process that is not a zombie.
func statOf(pid int) (s stats, ok bool) {
	stat, err := procid.ReadStat(pid)
	if err != nil || stat.Field(24) == "" || stat.Ended() {
		return s, false
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(stat.Field(i), 10, 64); return n }
	s.group = int(number(5))
	s.cpu = time.Duration(number(14)+number(15)+number(16)+number(17)) * time.Second / ticks
	s.memory = number(24) * int64(os.Getpagesize())
	return s, true
}

func groupMembers(group int) (pids []int) {
	for pid := range processes {
		if s, ok := statOf(pid); ok && s.group == group {
			pids = append(pids, pid)
		}
	}
	return pids
}

// listening returns the ports of listening sockets by inode, in the network namespace of a process.
func listening(pid int) map[string]int {
	ports := map[string]int{}
	for _, file := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if port, err := strconv.ParseUint(hex, 16, 16); err == nil {
				ports["socket:["+f[9]+"]"] = int(port)
			}
		}
	}
	return ports
}

func portsOf(pid int, sockets map[string]int) (ports []int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(mostFDs)
	for _, n := range names {
		if to, err := os.Readlink(dir + "/" + n); err == nil {
			if port, ok := sockets[to]; ok {
				ports = append(ports, port)
			}
		}
	}
	return ports
}
