//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// In a virtual machine the agent is the first process there is. It begins in
// the file system that the kernel unpacked: it mounts what a system has, loads
// the kernel's modules, makes the group that holds the code to its limits, and
// starts itself once more in there (see guestRoot), since the group is hidden
// from those who are born in it only.

const (
	initName  = "/init" // argv[0] of the agent as the kernel starts it
	guestName = "guest" // argv[0] of the agent once it is in its group
	groupFD   = 100     // of the agent in a guest: the folder of its group; above the runtime's own

	groups    = "/cgroup"
	groupName = "code"
	diskWait  = 20 * time.Second // for a disk or a port to appear; emulated machines are slow
)

// boot is what the kernel's arguments say.
type boot struct {
	vsock bool
	root  disk
	trees []disk
}

// disk is one of the machine's.
type disk struct{ name, kind, at string }

// bootGuest does what has to be done before everything else, and starts the
// agent anew.
func bootGuest() error {
	unix.Umask(0o022)
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "/dev", "mode=0755"}, {"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"cgroup2", groups, ""},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, procFlags&^unix.MS_NODEV, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			return call("mount", m.kind, err)
		}
	}
	b, err := readBoot()
	if err != nil {
		return err
	}
	wanted := []string{"base", "serial", b.root.kind}
	if b.vsock {
		wanted[1] = "vsock"
	}
	for _, t := range b.trees {
		wanted = append(wanted, t.kind)
	}
	if err := loadModules("/modules", wanted); err != nil {
		return err
	}
	if err := enterGroup(); err != nil {
		return err
	}
	return call("execve", initName, unix.Exec(initName, []string{guestName}, []string{}))
}

func readBoot() (boot, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return boot{}, err
	}
	return parseBoot(string(line))
}

func parseBoot(line string) (b boot, err error) {
	for word := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(word, agentprotocol.BootChannel); ok {
			if b.vsock = v == agentprotocol.BootVsock; !b.vsock && v != agentprotocol.BootSerial {
				return b, fmt.Errorf("the kernel's argument %s names no channel", word)
			}
		}
		if v, ok := strings.CutPrefix(word, agentprotocol.BootRoot); ok {
			if b.root, err = parseDisk(v + ":/"); err != nil {
				return b, err
			}
		}
		if v, ok := strings.CutPrefix(word, agentprotocol.BootTree); ok {
			t, err := parseDisk(v)
			if err != nil {
				return b, err
			}
			b.trees = append(b.trees, t)
		}
	}
	if b.root.name == "" {
		return b, fmt.Errorf("the kernel's arguments name no root file system: %s is missing", agentprotocol.BootRoot)
	}
	return b, nil
}

func parseDisk(s string) (disk, error) {
	f := strings.SplitN(s, ":", 3)
	if len(f) != 3 || f[0] == "" || strings.Contains(f[0], "/") || f[1] == "" || strings.Contains(f[1], "/") || !path.IsAbs(f[2]) {
		return disk{}, fmt.Errorf("the kernel's arguments tell of a disk %q", s)
	}
	return disk{f[0], f[1], path.Clean(f[2])}, nil
}

// loadModules loads what is there of each group. What another group brought
// already is no mistake.
func loadModules(dir string, wanted []string) error {
	for _, group := range wanted {
		files, err := filepath.Glob(filepath.Join(dir, group, "*.ko"))
		if err != nil {
			return err
		}
		slices.Sort(files)
		for _, f := range files {
			program, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			if err := unix.InitModule(program, ""); err != nil && !errors.Is(err, unix.EEXIST) {
				return call("init_module", f, err)
			}
		}
	}
	return nil
}

// enterGroup makes the group that holds everything in the guest together, goes
// into it, and has it look like the top of all groups to whatever comes.
func enterGroup() error {
	for _, c := range []string{"memory", "pids", "cpu"} {
		if err := os.WriteFile(groups+"/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("the guest's kernel holds no limits of %s: %w", c, err)
		}
	}
	if err := os.Mkdir(groups+"/"+groupName, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(groups+"/"+groupName+"/cgroup.procs", []byte("0"), 0); err != nil {
		return err
	}
	return call("unshare", "CLONE_NEWCGROUP", unix.Unshare(unix.CLONE_NEWCGROUP))
}

// guest is the agent in its group. It makes the file system the code sees, and
// then is an agent like every other.
func guest() error {
	b, err := readBoot()
	if err != nil {
		return err
	}
	if err := holdGroup(); err != nil {
		return err
	}
	if err := guestRoot(b); err != nil {
		return err
	}
	channel, again, err := b.connect()
	if err != nil {
		return err
	}
	if err := leaveBoot(); err != nil {
		return err
	}
	return serveOn(channel, again)
}

// connect finds the channel to the host, and what follows one that has ended.
func (b boot) connect() (channel io.ReadWriter, again func() (io.ReadWriter, error), err error) {
	if !b.vsock {
		channel, err = openSerial()
		return channel, nil, err
	}
	if again, err = listenVsock(); err == nil {
		channel, err = again()
	}
	return channel, again, err
}

// holdGroup keeps the group's folder open under its number: afterwards it has
// no path.
func holdGroup() error {
	fd, err := unix.Open(groups+"/"+groupName, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return call("open", groups, err)
	}
	if fd == groupFD {
		return nil
	}
	if err := unix.Dup3(fd, groupFD, unix.O_CLOEXEC); err != nil {
		return call("dup3", groups, err)
	}
	return unix.Close(fd)
}

// limitGroup holds all of the guest to what the plan says. Without memory of
// its own in it there is no such group.
func limitGroup(p agentprotocol.Plan) error {
	if p.MemoryBytes == 0 {
		return nil
	}
	const period = 100_000 // microseconds
	// Threads of the agent and the stages of a hundred calls at once. The code's
	// own are held to its limit by user as well.
	const overhead = 1024
	for _, l := range []struct{ file, value string }{
		{"memory.max", fmt.Sprint(p.MemoryBytes)},
		{"pids.max", fmt.Sprint(p.Processes + overhead)},
		{"cpu.max", fmt.Sprint(max(p.VCPUs, 1)*period, " ", period)},
	} {
		fd, err := unix.Openat(groupFD, l.file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return call("openat", l.file, err)
		}
		_, err = unix.Write(fd, []byte(l.value))
		unix.Close(fd)
		if err != nil {
			return call("write", l.file, err)
		}
	}
	return nil
}

// memoryKills counts what the guest's kernel ended in its group for want of
// memory.
func memoryKills(p agentprotocol.Plan) int64 {
	if p.MemoryBytes == 0 {
		return 0
	}
	return inGroup("memory.events", "oom_kill ")
}

// inGroup reads a number of the group: that after name at the beginning of a
// line. It is -1 when there is none.
func inGroup(file, name string) int64 {
	fd, err := unix.Openat(groupFD, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b[:n])) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			var v int64
			if _, err := fmt.Sscan(text, &v); err == nil {
				return v
			}
		}
	}
	return -1
}

// usedGroup tells what everything in the guest uses.
func (r *request) usedGroup() error {
	if r.desk.current().MemoryBytes == 0 {
		return fmt.Errorf("the agent has no group of its own: %w", unix.ENOTSUP)
	}
	for _, c := range []struct{ name, file, line string }{
		{agentprotocol.UsedCPU, "cpu.stat", "usage_usec "}, {agentprotocol.UsedMemory, "memory.current", ""}, {agentprotocol.UsedPeak, "memory.peak", ""},
		{agentprotocol.UsedProcesses, "pids.current", ""}, {agentprotocol.UsedKills, "memory.events", "oom_kill "},
	} {
		n := inGroup(c.file, c.line)
		if n < 0 {
			continue // an older kernel does not count it
		}
		if err := r.send(agentprotocol.Entry, agentprotocol.Info{Name: c.name, Size: n}.Body()); err != nil {
			return err
		}
	}
	return nil
}

// countKills adds to how a program ended how often memory ran out meanwhile.
func (r *request) countKills(before int64, err error) error {
	e, ok := errors.AsType[ended](err)
	if !ok {
		return err
	}
	e.OOMKills = max(0, memoryKills(r.desk.current())-before)
	return e
}
