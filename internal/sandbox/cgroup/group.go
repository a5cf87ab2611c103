//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// Group is the control group of one sandbox. The caller of New must remove it.
type Group struct {
	hierarchy *Hierarchy
	v2        string // "" if there is none
	apart     bool   // see NewApart

	mu   sync.Mutex        // guards v1 and dirs
	v1   map[string]string // controller to folder; it and dirs are replaced, not changed
	dirs []string          // all of them

	moving   sync.Mutex      // guards share, left, owner and assigned during Assign and Remove, which may take seconds; locked before mu
	share    *cpushare.Share // of the processors, in version 1; nil for none
	left     *cpushare.Share // what was to be left and could not; nil for none
	assigned bool            // to a principal, or removed
	owner    string          // the principal whose weight it has a part of, in version 2; "" for none
}

// New creates an empty group with these limits.
func (p *Hierarchy) New(l sandbox.Limits) (*Group, error) {
	g := &Group{hierarchy: p, v1: map[string]string{}}
	if err := g.createFolders(l); err != nil {
		g.Remove()
		return nil, err
	}
	return g, nil
}

func (g *Group) createFolders(l sandbox.Limits) error {
	name := newName()
	made := map[string]bool{}
	mkdir := func(parent string) (string, error) {
		dir := filepath.Join(parent, name)
		if made[dir] {
			return dir, nil // two controllers share one hierarchy
		}
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return "", fmt.Errorf("mkdir(%s): %w", dir, err)
		}
		made[dir] = true
		g.dirs = append(g.dirs, dir)
		return dir, nil
	}
	var err error
	if g.hierarchy.v2 != "" {
		if g.v2, err = mkdir(g.hierarchy.v2); err != nil {
			return err
		}
	}
	for c, parent := range g.hierarchy.v1 {
		if slices.Contains(g.hierarchy.in2, c) {
			continue
		}
		if c == "cpu" && !g.apart {
			if g.share, err = cpushare.JoinPrograms(parent); err != nil {
				return err
			}
			parent = g.share.Dir()
		}
		if g.v1[c], err = mkdir(parent); err != nil {
			return err
		}
	}
	return g.Set(l)
}

// Set changes the limits, also for processes that are in the group.
func (g *Group) Set(l sandbox.Limits) error {
	memory := strconv.FormatInt(int64(l.MemoryMiB)<<20, 10)
	// Allow for the agent and the launchers of calls.
	processes := strconv.Itoa(l.Processes + overhead)
	quota := strconv.Itoa(l.VCPUs * cpuPeriod)
	return errors.Join(
		g.setMemory(memory),
		g.setSocketMemory(int64(l.MemoryMiB)<<20),
		g.setLimit("pids", "pids.max", processes, "pids.max", processes),
		g.setLimit("cpu", "cpu.max", quota+" "+strconv.Itoa(cpuPeriod), "cpu.cfs_quota_us", quota),
	)
}

// setMemory limits memory, and memory plus swap. Version 1 requires that the second is never less than the
// first, so the order depends on the previous values; a kernel without swap accounting has no file for the
// second.
func (g *Group) setMemory(bytes string) error {
	first := func() error { return g.setLimit("memory", "memory.max", bytes, "memory.limit_in_bytes", bytes) }
	second := func() error {
		err := g.setLimit("memory", "memory.swap.max", "0", "memory.memsw.limit_in_bytes", bytes)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	if err := first(); errors.Is(err, unix.EINVAL) {
		return errors.Join(second(), first())
	} else if err != nil {
		return err
	}
	return second()
}

// setSocketMemory limits the memory of TCP and UDP sockets to a sixteenth of the memory. The kernel has a fixed
// amount for all sockets of the machine, less than a tenth of its memory, and sockets of version 1 do not count
// against the limit of memory. In version 2 they do, and have no limit of their own.
func (g *Group) setSocketMemory(memory int64) error {
	dir := g.folder("memory")
	if dir == "" {
		return nil
	}
	err := writeFile(dir, "memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(max(memory/16, leastSocketMemory), 10))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

const leastSocketMemory = 4 << 20

// setLimit writes to the file of the version that has the controller, if any.
func (g *Group) setLimit(controller, in2, value2, in1, value1 string) error {
	switch {
	case slices.Contains(g.hierarchy.in2, controller):
		return writeFile(g.v2, in2, value2)
	case g.folder(controller) != "":
		return writeFile(g.folder(controller), in1, value1)
	}
	return nil
}

// overhead is how many threads the agent and the launchers of a hundred calls at once may have in addition to
// the code. It does not raise the code's limit, which is also enforced for its user.
const overhead = 1024

// Enter moves this thread into the groups of version 1, so that its children start in them. Moving a thread
// takes microseconds, moving a process afterwards would take milliseconds. Leave moves it out again. The
// caller has locked its thread by runtime.LockOSThread.
func (g *Group) Enter() error {
	for _, dir := range g.v1 {
		if err := writeFile(dir, "tasks", "0"); err != nil {
			return errors.Join(err, g.Leave())
		}
	}
	return nil
}

// AddProcess moves a running process with all its threads into the group.
func (g *Group) AddProcess(pid int) error {
	var all []error
	for _, dir := range g.folders() {
		all = append(all, writeFile(dir, "cgroup.procs", strconv.Itoa(pid)))
	}
	return errors.Join(all...)
}

// Leave moves this thread back to the groups of its process.
func (g *Group) Leave() error {
	var all []error
	for c := range g.v1 {
		all = append(all, writeFile(g.hierarchy.self[c], "tasks", "0"))
	}
	return errors.Join(all...)
}

// OpenV2 opens the group of version 2, for clone3 to start a process in; nil if there is none. The caller
// closes it.
func (g *Group) OpenV2() (*os.File, error) {
	if g.v2 == "" {
		return nil, nil
	}
	return os.Open(g.v2)
}

// Kill kills all processes of the group, also if it is frozen.
func (g *Group) Kill() {
	for range 200 {
		left := false
		for _, dir := range g.folders() {
			left = killAll(dir) || left
		}
		if !left {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// KillAtOnce kills all processes of the group if the kernel can do so with one write, and does nothing
// otherwise. It does not wait. Killing the first process of a PID namespace instead would end that process
// first and then the others.
func (g *Group) KillAtOnce() {
	if g.v2 != "" {
		writeFile(g.v2, "cgroup.kill", "1")
	}
}

// killAll reports whether there were processes that had to be killed one by one.
func killAll(dir string) (left bool) {
	if writeFile(dir, "cgroup.kill", "1") == nil {
		return false
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL)
			left = true
		}
	}
	writeFile(dir, "freezer.state", "THAWED") // in version 1's freezer no process dies; other groups have no such file
	return left
}

// Remove removes the groups. It waits for killed processes to leave them.
func (g *Group) Remove() error {
	g.moving.Lock()
	defer g.moving.Unlock()
	g.assigned = true
	var all []error
	for _, dir := range g.folders() {
		all = append(all, removeGroup(dir))
	}
	g.share.Leave()
	g.left.Leave()
	return errors.Join(append(all, g.disown(), g.leaveApart())...)
}

func removeGroup(dir string) error {
	for end, pause := time.Now().Add(emptyWait), 50*time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("rmdir(%s): %w", dir, err)
		}
		time.Sleep(pause)
	}
}

// OOMKills returns how many processes of the group the kernel has killed because memory ran out.
func (g *Group) OOMKills() int {
	dir, second := g.controllerFolder("memory")
	if second {
		return int(max(readCounter(dir, "memory.events", "oom_kill "), 0))
	}
	return int(max(readCounter(dir, "memory.oom_control", "oom_kill "), 0))
}

// writeFile writes to a file of the kernel. It avoids os.File, whose support for blocking files costs time, because
// it runs several times for each sandbox.
func writeFile(dir, file, value string) error {
	at := dir + "/" + file
	fd, err := unix.Open(at, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open(%s): %w", at, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write(%s, %s): %w", at, value, err)
	}
	return nil
}

// readFile reads a short file of the kernel without os.File, because each call in a sandbox reads the count of OOM
// kills first.
func readFile(dir, file string) ([]byte, error) {
	at := dir + "/" + file
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open(%s): %w", at, err)
	}
	defer unix.Close(fd)
	var b []byte
	for part := make([]byte, 4<<10); ; {
		n, err := unix.Read(fd, part)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read(%s): %w", at, err)
		}
		if n == 0 {
			return b, nil
		}
		b = append(b, part[:n]...)
	}
}
