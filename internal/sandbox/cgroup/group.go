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
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// Group holds one sandbox. Whoever makes it removes it.
type Group struct {
	place *Place
	v2    string            // "" when there is none
	v1    map[string]string // controller to folder
	dirs  []string          // all of them
}

// New makes a group with these limits. Nothing is in it yet.
func (p *Place) New(l sandbox.Limits) (*Group, error) {
	g := &Group{place: p, v1: map[string]string{}}
	if err := g.make(l); err != nil {
		g.Remove()
		return nil, err
	}
	return g, nil
}

func (g *Group) make(l sandbox.Limits) error {
	name := name()
	made := map[string]bool{}
	mkdir := func(parent string) (string, error) {
		dir := filepath.Join(parent, name)
		if made[dir] {
			return dir, nil // two controllers in one hierarchy
		}
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return "", fmt.Errorf("mkdir(%s): %w", dir, err)
		}
		made[dir] = true
		g.dirs = append(g.dirs, dir)
		return dir, nil
	}
	var err error
	if g.place.v2 != "" {
		if g.v2, err = mkdir(g.place.v2); err != nil {
			return err
		}
	}
	for c, parent := range g.place.v1 {
		if slices.Contains(g.place.in2, c) {
			continue
		}
		if g.v1[c], err = mkdir(parent); err != nil {
			return err
		}
	}
	return g.Set(l)
}

// Set changes the limits, also of what is in it already.
func (g *Group) Set(l sandbox.Limits) error {
	memory := strconv.FormatInt(int64(l.MemoryMiB)<<20, 10)
	// The agent and the stages of calls are not the code's.
	processes := strconv.Itoa(l.Processes + overhead)
	quota := strconv.Itoa(l.VCPUs * cpuPeriod)
	return errors.Join(
		g.setMemory(memory),
		g.set("pids", "pids.max", processes, "pids.max", processes),
		g.set("cpu", "cpu.max", quota+" "+strconv.Itoa(cpuPeriod), "cpu.cfs_quota_us", quota),
	)
}

// setMemory limits memory, and memory and swap together. Version 1 wants the
// second never to be less than the first, so the order depends on what was; a
// kernel without swap accounting has no file for the second.
func (g *Group) setMemory(bytes string) error {
	first := func() error { return g.set("memory", "memory.max", bytes, "memory.limit_in_bytes", bytes) }
	second := func() error {
		err := g.set("memory", "memory.swap.max", "0", "memory.memsw.limit_in_bytes", bytes)
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

// set writes to the file of whichever version has the controller, if any.
func (g *Group) set(controller, in2, value2, in1, value1 string) error {
	switch {
	case slices.Contains(g.place.in2, controller):
		return put(g.v2, in2, value2)
	case g.v1[controller] != "":
		return put(g.v1[controller], in1, value1)
	}
	return nil
}

// overhead is how many threads the agent and the stages of a hundred calls at
// once may have, beside the code. The code's own are held to its limit by user
// as well, so that this is no room for them.
const overhead = 1024

// Enter takes this thread into the groups of version 1, so that what it starts
// is born in them. Moving a thread takes microseconds, where moving the process
// afterwards would take milliseconds. Leave takes it out again. The caller
// holds its thread by runtime.LockOSThread.
func (g *Group) Enter() error {
	for _, dir := range g.v1 {
		if err := put(dir, "tasks", "0"); err != nil {
			return errors.Join(err, g.Leave())
		}
	}
	return nil
}

// Take takes in a process that was born elsewhere, with all its threads.
func (g *Group) Take(pid int) error {
	var all []error
	for _, dir := range g.dirs {
		all = append(all, put(dir, "cgroup.procs", strconv.Itoa(pid)))
	}
	return errors.Join(all...)
}

// Leave takes this thread back to where the process is.
func (g *Group) Leave() error {
	var all []error
	for c := range g.v1 {
		all = append(all, put(g.place.self[c], "tasks", "0"))
	}
	return errors.Join(all...)
}

// Born opens the group of version 2 for a process to be born in; nil when there
// is none. The caller closes it.
func (g *Group) Born() (*os.File, error) {
	if g.v2 == "" {
		return nil, nil
	}
	return os.Open(g.v2)
}

// Kill ends everything in it, also where it is stopped.
func (g *Group) Kill() {
	for range 200 {
		left := false
		for _, dir := range g.dirs {
			left = kill(dir) || left
		}
		if !left {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// KillAtOnce ends everything in it where the kernel does so with one word, and
// nothing elsewhere. It waits for nobody. What is ended by way of a first process
// of a space ends one after the other: that one, then what it was the first of.
func (g *Group) KillAtOnce() {
	if g.v2 != "" {
		put(g.v2, "cgroup.kill", "1")
	}
}

// kill reports whether there was something to be killed one by one.
func kill(dir string) (left bool) {
	if put(dir, "cgroup.kill", "1") == nil {
		return false
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL)
			left = true
		}
	}
	put(dir, "freezer.state", "THAWED") // of version 1's freezer, in which nothing dies; others have no such file
	return left
}

// Remove takes the groups away, which are empty in a moment when everything in
// them was killed.
func (g *Group) Remove() error {
	var all []error
	for _, dir := range g.dirs {
		all = append(all, remove(dir))
	}
	return errors.Join(all...)
}

func remove(dir string) error {
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

// OOMKills counts what the kernel ended in it for want of memory.
func (g *Group) OOMKills() int {
	dir, second := g.of("memory")
	if second {
		return int(max(counted(dir, "memory.events", "oom_kill "), 0))
	}
	return int(max(counted(dir, "memory.oom_control", "oom_kill "), 0))
}

// put writes to a file of the kernel's, without what os.File does to files
// that may block: it is done several times for each sandbox.
func put(dir, file, value string) error {
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

// get reads a file of the kernel's, which has little to say, as put writes one:
// each call in a sandbox begins with asking whether memory ran out before it.
func get(dir, file string) ([]byte, error) {
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
