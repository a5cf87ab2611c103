//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/seccomp"

	"golang.org/x/sys/unix"
)

const (
	userName   = "user"   // argv[0] of the agent when it becomes a program of a sandbox with users of its own
	mappedName = "mapped" // second argument of the agent once its user namespace has a map
)

// UserIDs is sandbox.UserIDs, which the agent does not import because of what that imports.
const UserIDs = 1 << 16

// WaitForMap is the second argument of the agent while its user namespace has no map. It waits for a byte in its
// channel.
const WaitForMap = "wait"

// waitForMap waits until the host has written the map of the agent's user namespace, and starts the agent again:
// without a map the kernel gave it no capability when it was started.
func waitForMap() error {
	if n, err := unix.Read(channelFD, make([]byte, 1)); n != 1 {
		return fmt.Errorf("the host wrote no map of users: %w", errors.Join(io.ErrUnexpectedEOF, err))
	}
	return sysErr("execve", "the agent", syscall.Exec("/proc/self/exe", []string{"agent", os.Args[1], mappedName},
		os.Environ()))
}

// startUser starts a program of a sandbox with users of its own. It runs in a user namespace below that of the agent,
// so that its user 0 has no power over the mounts, the network and the processes of the sandbox, and the kernel counts
// all its users together against the limit of processes.
func startUser(plan agentprotocol.Plan, program agentprotocol.Program) (pid int, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	// The agent's own map may have two such parts, and the kernel takes no part that is in two of these.
	ids := []syscall.SysProcIDMap{{Size: 1}, {ContainerID: 1, HostID: 1, Size: UserIDs - 1}}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{userName}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{0, 1, 2, theirs.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: program.Size != (agentprotocol.Size{}),
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{},
		},
	})
	theirs.Close()
	if err != nil {
		return 0, sysErr("clone", "CLONE_NEWUSER", err)
	}
	err = errors.Join(agentprotocol.Write(ours, agentprotocol.Frame{Kind: agentprotocol.Setup, ID: 1, Body: plan.Body()}),
		agentprotocol.Write(ours, agentprotocol.Frame{Kind: agentprotocol.Start, ID: 1, Body: program.Body()}))
	var f agentprotocol.Frame
	if err == nil {
		f, err = agentprotocol.Read(ours)
	}
	switch {
	case errors.Is(err, io.EOF): // the program runs in its place
		return pid, nil
	case err == nil && f.Kind == agentprotocol.Failed:
		var why agentprotocol.Failure
		if why, err = agentprotocol.ParseFailure(f.Body); err == nil {
			err = why
		}
	case err == nil:
		err = fmt.Errorf("unexpected frame of kind %d", f.Kind)
	}
	return 0, err
}

// becomeProgram is what a process of startUser does. It returns only if the program cannot be started.
func becomeProgram() error {
	unix.CloseOnExec(channelFD)
	channel := os.NewFile(channelFD, "channel")
	plan, program, err := readStart(channel)
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		file, dir, env, err := located(plan, program)
		if err == nil {
			if err = unix.Chdir(dir); err != nil {
				err = fmt.Errorf("working directory: %w", sysErr("chdir", dir, err))
			}
		}
		if err == nil {
			err = confineUser(plan)
		}
		if err == nil {
			err = startError(file, dir, syscall.Exec(file, program.Argv, env))
		}
		done <- err
	}()
	return sendFailure(channel, <-done)
}

// userCapabilities are those of user 0: they are about owners and users, and hold for the ids of the namespace alone.
const userCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP

// confineUser makes the calling thread one of the user with which programs start, and gives up all other rights.
func confineUser(plan agentprotocol.Plan) error {
	if err := dropBounding(userCapabilities); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return sysErr("prctl", "PR_SET_NO_NEW_PRIVS", err)
	}
	if err := landlock.Restrict(writablePaths(plan), nil); err != nil {
		return err
	}
	if err := setUser(plan); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if plan.UID == 0 {
		caps[0].Effective, caps[0].Permitted = userCapabilities, userCapabilities
	}
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return sysErr("capset", "those of a program", err)
	}
	filter := seccomp.Default()
	if plan.Strict {
		filter = seccomp.Strict()
	}
	if plan.DataBytes > 0 {
		filter = seccomp.Unbacked(filter)
	}
	return seccomp.Install(filter)
}

// setUser sets the groups and the user of the calling thread. The raw system calls change this thread alone; the
// standard library would change all threads.
func setUser(plan agentprotocol.Plan) error {
	groups := make([]uint32, len(plan.Groups), len(plan.Groups)+1)
	for i, g := range plan.Groups {
		groups[i] = uint32(g)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
		return sysErr("setgroups", fmt.Sprint(groups), errno)
	}
	id := uintptr(plan.GID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); errno != 0 {
		return sysErr("setresgid", fmt.Sprint(id), errno)
	}
	id = uintptr(plan.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
		return sysErr("setresuid", fmt.Sprint(id), errno)
	}
	return nil
}

// dropBounding removes the capabilities that are not kept from what programs of the calling thread can have.
func dropBounding(kept uint64) error {
	for c := range 64 {
		if kept&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // the kernel has no further capabilities
		}
		if err != nil {
			return sysErr("prctl", "PR_CAPBSET_DROP", err)
		}
	}
	return nil
}

// chownTree gives what is at or below a path to a user: what belongs to user 0 or, with all, everything. Links are not
// followed.
func (r *request) chownTree(name string, uid, gid int, all bool) error {
	return filepath.WalkDir(absolute(name), func(at string, _ fs.DirEntry, err error) error {
		if err == nil && r.isKilled() {
			err = unix.ECANCELED
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(at, &st)
		}
		if err == nil && (all || st.Uid == 0) {
			err = unix.Lchown(at, uid, gid)
		}
		return ignore(err, unix.ENOENT) // removed meanwhile
	})
}

// treeSize sends the bytes of the regular files below a folder.
func (r *request) treeSize(name string) error {
	var size int64
	err := filepath.WalkDir(absolute(name), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && r.isKilled() {
			err = unix.ECANCELED
		}
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				size += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.sendReply(agentprotocol.Entry, agentprotocol.Info{Size: size}.Body())
}
