//go:build linux && (amd64 || arm64)

package fake

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"gatehouse/internal/sandbox/agent/binary"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// Numbers of files in the agent: its channel, its own program, and the first
// that is not for it.
const (
	programFD = 4
	afterFDs  = 5
)

var users = sync.OnceValue(rootfs.NewUsers)

// startAgent starts one in namespaces of its own. end ends it and everything in
// there; so does the end of this process.
func startAgent() (channel io.ReadWriteCloser, end func(), err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: socketpair: %w", ErrNoAgent, err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "agent")
	defer theirs.Close()
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	p, slot, err := launch(theirs)
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	return c, func() {
		c.Close()
		p.Kill()
		p.Wait()
		users().Release(slot)
	}, nil
}

func launch(channel *os.File) (*os.Process, int, error) {
	program, err := sealed()
	if err != nil {
		return nil, 0, err
	}
	defer program.Close()
	none, err := null()
	if err != nil {
		return nil, 0, err
	}
	defer none.Close()
	slot, err := users().Acquire()
	if err != nil {
		return nil, 0, err
	}
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, Pdeathsig: syscall.SIGKILL, GidMappingsEnableSetgroups: !users().Single,
		Credential: &syscall.Credential{NoSetGroups: users().Single},
	}
	uid, gid, size := users().Range(slot)
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: size}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: size}}
	var p *os.Process
	onLastingThread(func() {
		p, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", programFD),
			[]string{"agent", strconv.Itoa(afterFDs)}, &os.ProcAttr{
				Env: []string{}, Files: []*os.File{none, none, none, channel, program}, Sys: attr,
			})
	})
	if err != nil {
		users().Release(slot)
	}
	return p, slot, err
}

// onLastingThread does f on a thread that stays, since the kernel ends what was
// started with the thread that did.
func onLastingThread(f func()) {
	done := make(chan bool)
	go func() {
		runtime.LockOSThread()
		f()
		close(done)
		select {}
	}()
	<-done
}

// sealed is the agent's program in memory.
func sealed() (*os.File, error) {
	b, err := binary.Agent()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("agent", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "agent")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
