//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/guest"

	"golang.org/x/sys/unix"
)

const (
	overheadMiB = 64  // of the machine's memory, for its kernel
	monitorMiB  = 256 // for QEMU itself, in addition to the machine's memory
	threads     = 64  // of QEMU
	endWait     = 10 * time.Second
)

// File descriptors of QEMU, after the standard ones.
const (
	monitorFD = 3 + iota
	agentFD
	memoryFD
	kernelFD
	initrdFD
	disksFD // the first disk
)

// build describes how a machine is made. It is the same for all that are restored from one template.
type build struct {
	memoryMiB   int // of the machine
	vcpus       int
	accelerator string
	kernel      string // paths
	initrd      string
	disks       []string
	holds       []*os.File // open files keep the disks from being removed; the garbage collector closes them
	arguments   string     // of the kernel
}

// machine is one QEMU process.
type machine struct {
	process          *os.Process
	group            *cgroup.Group
	console          *console
	monitor          *monitor
	agent            *os.File // the host's end of the agent's channel; its client closes it
	memory           *os.File // the file with the machine's memory, or with the memory it started from
	ownMemory        bool     // the machine writes to memory; otherwise it has private copies of changed pages
	ended            chan struct{}
	once             sync.Once
	releaseResources func() // releases the machine's other resources
}

// memoryFile creates an anonymous file of size bytes in memory.
func memoryFile(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create(%s): %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// seal makes a file in memory immutable. It fails while a process has it mapped writable.
func seal(f *os.File) error {
	const all = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, all); err != nil {
		return &os.PathError{Op: "seal", Path: f.Name(), Err: err}
	}
	return nil
}

// reopen opens a file once more, with a file offset of its own.
func reopen(f *os.File) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) }

// duplicate duplicates a file descriptor, so that both can be closed independently.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "fcntl", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// launch starts QEMU with its memory in a file: one of its own, or one whose changed pages it copies. If waits
// is set, QEMU waits for the state of a snapshot. The caller keeps ownership of memory.
func (d *Driver) launch(ctx context.Context, b build, memory *os.File, own, waits bool) (_ *machine, err error) {
	m := &machine{console: &console{}, ownMemory: own, ended: make(chan struct{})}
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	if m.memory, err = duplicate(memory); err != nil {
		return nil, err
	}
	undo = append(undo, func() { m.memory.Close() })
	slot, err := d.users.Acquire()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.users.Release(slot) })
	if m.group, err = d.groups.New(sandbox.Limits{
		MemoryMiB: b.memoryMiB + monitorMiB,
		Processes: threads,
		VCPUs:     b.vcpus,
	}); err != nil {
		return nil, err
	}
	undo = append(undo, func() { m.group.Kill(); m.group.Remove() })
	files := make([]*os.File, memoryFD-3, disksFD-3+len(b.disks))
	given := sync.OnceFunc(func() {
		for _, f := range files {
			f.Close()
		}
	})
	defer given()
	orders, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	files[monitorFD-3] = theirs
	if m.agent, files[agentFD-3], err = socketPair(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { m.agent.Close() })
	mapped, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", memory.Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	files = append(files, mapped)
	for _, path := range append([]string{b.kernel, b.initrd}, b.disks...) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if err := d.startMachine(m, append([]string{d.program}, b.commandLine(own, waits)...), files, slot); err != nil {
		return nil, err
	}
	undo = append(undo, func() { m.process.Kill(); <-m.ended })
	given() // so that the channels end when QEMU does
	if m.monitor, err = newMonitor(ctx, orders); err != nil {
		return nil, d.withConsole(m, err)
	}
	m.releaseResources = func() { d.users.Release(slot) }
	return m, nil
}

// commandLine returns QEMU's command line. It names inherited files only, so that QEMU requires access to no path.
func (b build) commandLine(own, waits bool) []string {
	share, processor := "off", "host"
	if own {
		share = "on"
	}
	accelerator := b.accelerator
	if accelerator == tcg {
		accelerator, processor = "tcg,thread=single", "max"
	}
	fd := func(n int) string { return fmt.Sprintf("/proc/self/fd/%d", n) }
	line := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-global", "migration.send-configuration=off", // the stream that save writes does not contain it
		"-machine", "microvm,memory-backend=memory,mem-merge=off", "-accel", accelerator, "-cpu", processor,
		"-smp", fmt.Sprint(b.vcpus),
		"-m", fmt.Sprintf("%dM", b.memoryMiB),
		"-object", fmt.Sprintf("memory-backend-file,id=memory,size=%dM,mem-path=%s,share=%s,reserve=off",
			b.memoryMiB, fd(memoryFD), share),
		"-serial", "stdio",
		"-chardev", fmt.Sprintf("socket,id=orders,fd=%d", monitorFD), "-mon", "chardev=orders,mode=control",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentFD),
		"-device", "virtio-serial-device", "-device", "virtserialport,chardev=agent,name=" + agentprotocol.BootPort,
	}
	for i := range b.disks {
		line = append(line,
			"-drive", fmt.Sprintf("id=disk%d,file=%s,format=raw,if=none,readonly=on", i, fd(disksFD+i)),
			"-device", fmt.Sprintf("virtio-blk-device,drive=disk%d", i))
	}
	if waits {
		return append(line, "-incoming", "defer") // the kernel is in the restored memory
	}
	return append(line, "-kernel", fd(kernelFD), "-initrd", fd(initrdFD), "-append", b.arguments)
}

// startMachine starts QEMU with a user id and namespaces of its own if that is possible. The kernel kills it when
// this process ends.
func (d *Driver) startMachine(m *machine, line []string, files []*os.File, slot int) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	said, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer say.Close()
	born, err := m.group.OpenV2()
	if err != nil {
		return errors.Join(err, said.Close())
	}
	attr := &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/bin:/bin", "LANG=C"}, Files: append([]*os.File{null, say, say}, files...),
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if born != nil {
		defer born.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(born.Fd())
	}
	if !d.users.Single {
		uid, gid, _ := d.users.Range(slot)
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: d.kvmGroups()}
		attr.Sys.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID
	}
	err = d.starter.Do(func() error {
		if err := m.group.Enter(); err != nil {
			return err
		}
		p, err := os.StartProcess(line[0], line, attr)
		if left := m.group.Leave(); err == nil && left != nil {
			p.Kill()
			p.Wait()
			return left
		}
		m.process = p
		return err
	})
	if err != nil {
		return errors.Join(err, said.Close())
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		defer said.Close()
		io.Copy(m.console, said)
	}()
	go func() {
		defer close(m.ended)
		m.process.Wait()
		select {
		case <-heard:
		case <-time.After(endWait): // a child of QEMU still holds its output open
		}
	}()
	return nil
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair(AF_UNIX): %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "machine"), os.NewFile(uintptr(fds[1]), "machine"), nil
}

// withConsole adds the end of the console to an error. If the channel broke, QEMU is ending, and explain waits for
// its exit, because only then is its output complete, which may take long on a busy host.
func (d *Driver) withConsole(m *machine, err error) error {
	wait := 100 * time.Millisecond
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		wait = endWait
	}
	select {
	case <-m.ended:
	case <-time.After(wait):
	}
	if last := m.console.String(); last != "" {
		return fmt.Errorf("%w; the machine printed last: %s", err, last)
	}
	return err
}

// endMachine kills QEMU and releases its resources. It may be called more than once.
func (m *machine) endMachine() (err error) {
	m.once.Do(func() {
		m.process.Kill()
		select {
		case <-m.ended:
		case <-time.After(endWait):
			m.group.Kill()
			<-m.ended
		}
		m.monitor.closeMonitor()
		err = errors.Join(m.group.Remove(), m.memory.Close())
		m.releaseResources()
	})
	return err
}

// disksOf returns the files of a root and of trees in their order, and the open files that keep them.
func disksOf(root guest.Disk, trees []guest.Tree) (paths []string, uses []*os.File) {
	paths, uses = []string{root.Path}, []*os.File{root.Hold}
	for _, t := range trees {
		paths, uses = append(paths, t.Path), append(uses, t.Hold)
	}
	return paths, uses
}
