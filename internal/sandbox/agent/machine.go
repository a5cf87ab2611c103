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

// In a virtual machine the agent is the first process. It starts in the initramfs: it mounts the kernel's file
// systems, loads kernel modules, creates the control group that limits the code, and then executes itself
// again in that group (see runGuest), because a cgroup namespace hides the group's path only from processes
// that start in it.

const (
	initName  = "/init" // argv[0] of the agent when the kernel starts it
	guestName = "guest" // argv[0] of the agent when it runs in its control group
	// Of the agent in a machine: the folder of its control group; above the Go runtime's own files.
	groupFD = 100

	groups    = "/cgroup"
	groupName = "code"
	diskWait  = 20 * time.Second // how long to wait for a disk or a port to appear; emulated machines are slow
)

// boot holds the decoded kernel arguments.
type boot struct {
	vsock bool
	root  disk
	trees []disk
}

// disk is a disk of the machine: its device name, its file system type, and its mount point.
type disk struct{ name, kind, at string }

// bootGuest prepares the machine and executes the agent again.
func bootGuest() error {
	unix.Umask(0o022)
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "/dev", "mode=0755"}, {"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"cgroup2", groups, ""},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, procFlags&^unix.MS_NODEV, m.options); err != nil &&
			!errors.Is(err, unix.EBUSY) {
			return sysErr("mount", m.kind, err)
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
	return sysErr("execve", initName, unix.Exec(initName, []string{guestName}, []string{}))
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
				return b, fmt.Errorf("the kernel argument %s does not name a channel", word)
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
		return b, fmt.Errorf("the kernel arguments name no root file system: %s is missing", agentprotocol.BootRoot)
	}
	return b, nil
}

func parseDisk(s string) (disk, error) {
	f := strings.SplitN(s, ":", 3)
	if len(f) != 3 || f[0] == "" || strings.Contains(f[0], "/") || f[1] == "" || strings.Contains(f[1], "/") ||
		!path.IsAbs(f[2]) {
		return disk{}, fmt.Errorf("the kernel arguments describe a disk as %q; expected name:type:/path", s)
	}
	return disk{f[0], f[1], path.Clean(f[2])}, nil
}

// loadModules loads the kernel modules of each group. A module that another group has loaded already is not an
// error.
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
				return sysErr("init_module", f, err)
			}
		}
	}
	return nil
}

// enterGroup creates the control group that limits everything in the machine, enters it, and creates a cgroup
// namespace in which it is the root.
func enterGroup() error {
	for _, c := range []string{"memory", "pids", "cpu"} {
		if err := os.WriteFile(groups+"/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("the machine's kernel has no %s controller: %w", c, err)
		}
	}
	if err := os.Mkdir(groups+"/"+groupName, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(groups+"/"+groupName+"/cgroup.procs", []byte("0"), 0); err != nil {
		return err
	}
	return sysErr("unshare", "CLONE_NEWCGROUP", unix.Unshare(unix.CLONE_NEWCGROUP))
}

// runGuest is the agent in its control group. It mounts the root file system of the code and then serves like
// any other agent.
func runGuest() error {
	b, err := readBoot()
	if err != nil {
		return err
	}
	if err := openGroup(); err != nil {
		return err
	}
	if err := mountGuestRoot(b); err != nil {
		return err
	}
	channel, again, err := b.connectHost()
	if err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	return serveOn(channel, again)
}

// connectHost opens the channel to the host. reopen returns the channel that replaces one that has ended.
func (b boot) connectHost() (channel io.ReadWriter, again func() (io.ReadWriter, error), err error) {
	if !b.vsock {
		channel, err = openSerial()
		return channel, nil, err
	}
	if again, err = listenVsock(); err == nil {
		channel, err = again()
	}
	return channel, again, err
}

// openGroup opens the control group's folder as groupFD, because it has no path after switchRoot.
func openGroup() error {
	fd, err := unix.Open(groups+"/"+groupName, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return sysErr("open", groups, err)
	}
	if fd == groupFD {
		return nil
	}
	if err := unix.Dup3(fd, groupFD, unix.O_CLOEXEC); err != nil {
		return sysErr("dup3", groups, err)
	}
	return unix.Close(fd)
}

// limitGroup applies the plan's limits to the control group. A plan without MemoryBytes has no such group.
func limitGroup(p agentprotocol.Plan) error {
	if p.MemoryBytes == 0 {
		return nil
	}
	const period = 100_000 // microseconds
	// Allows for threads of the agent and the launchers of a hundred calls at once. The limit of the code's
	// user bounds its own processes.
	const overhead = 1024
	for _, l := range []struct{ file, value string }{
		{"memory.max", fmt.Sprint(p.MemoryBytes)},
		{"pids.max", fmt.Sprint(p.Processes + overhead)},
		{"cpu.max", fmt.Sprint(max(p.VCPUs, 1)*period, " ", period)},
	} {
		fd, err := unix.Openat(groupFD, l.file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return sysErr("openat", l.file, err)
		}
		_, err = unix.Write(fd, []byte(l.value))
		unix.Close(fd)
		if err != nil {
			return sysErr("write", l.file, err)
		}
	}
	return nil
}

// memoryKills returns how many processes of the control group the kernel has killed because memory ran out.
func memoryKills(p agentprotocol.Plan) int64 {
	if p.MemoryBytes == 0 {
		return 0
	}
	return readGroup("memory.events", "oom_kill ")
}

// readGroup returns a number from a file of the control group: the one after name at the start of a line. It
// returns -1 if there is none.
func readGroup(file, name string) int64 {
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

// groupUsage sends an Entry for each counter of the control group.
func (r *request) groupUsage() error {
	if r.server.currentPlan().MemoryBytes == 0 {
		return fmt.Errorf("the agent has no control group of its own: %w", unix.ENOTSUP)
	}
	for _, c := range []struct{ name, file, line string }{
		{agentprotocol.UsageCPU, "cpu.stat", "usage_usec "}, {agentprotocol.UsageMemory, "memory.current", ""},
		{agentprotocol.UsagePeak, "memory.peak", ""},
		{agentprotocol.UsageProcesses, "pids.current", ""}, {agentprotocol.UsageOOMKills, "memory.events", "oom_kill "},
	} {
		n := readGroup(c.file, c.line)
		if n < 0 {
			continue // not supported by older kernels
		}
		if err := r.sendReply(agentprotocol.Entry, agentprotocol.Info{Name: c.name, Size: n}.Body()); err != nil {
			return err
		}
	}
	return nil
}

// addKills adds to an exit status how many processes were killed meanwhile because memory ran out.
func (r *request) addKills(before int64, err error) error {
	e, ok := errors.AsType[ended](err)
	if !ok {
		return err
	}
	e.OOMKills = max(0, memoryKills(r.server.currentPlan())-before)
	return e
}
