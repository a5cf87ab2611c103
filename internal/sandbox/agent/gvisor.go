//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// gVisor's kernel in user space answers most system calls as Linux does, and some not at all. This file
// contains the replacements.

// underGVisor reports whether the host started the agent under gVisor.
func underGVisor() bool { return len(os.Args) == 2 && os.Args[1] == stdioName }

// setMountAttr sets mount attributes of the mount at a path. Without mount_setattr it remounts.
func setMountAttr(at string, attr uint64) error {
	err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: attr})
	if !errors.Is(err, unix.ENOSYS) {
		return sysErr("mount_setattr", at, err)
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	for a, flag := range map[uint64]uintptr{
		unix.MOUNT_ATTR_RDONLY: unix.MS_RDONLY, unix.MOUNT_ATTR_NOSUID: unix.MS_NOSUID,
		unix.MOUNT_ATTR_NODEV: unix.MS_NODEV, unix.MOUNT_ATTR_NOEXEC: unix.MS_NOEXEC,
	} {
		if attr&a != 0 {
			flags |= flag
		}
	}
	return sysErr("mount", "again, "+at, unix.Mount("", at, "", flags, ""))
}

// gVisor does not enforce RLIMIT_NPROC, but it has control groups. The hierarchy is mounted where only the
// agent and the launchers can reach it, and a launcher unmounts it before its program starts.
const (
	groupsAt    = "/run"
	pidsAt      = groupsAt + "/pids"
	programPids = pidsAt + "/code"
)

// makePidsGroup creates the control group of all programs.
func makePidsGroup(p agentprotocol.Plan) error {
	if err := unix.Mount("tmpfs", groupsAt, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=700,size=4k"); err != nil {
		return sysErr("mount", "tmpfs of the groups", err)
	}
	if err := unix.Mkdir(pidsAt, 0o700); err != nil {
		return sysErr("mkdir", pidsAt, err)
	}
	if err := unix.Mount("cgroup", pidsAt, "cgroup", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "pids"); err != nil {
		return sysErr("mount", "cgroup", err)
	}
	if err := unix.Mkdir(programPids, 0o700); err != nil {
		return sysErr("mkdir", programPids, err)
	}
	return limitPids(p)
}

// limitPids sets the process limit of the control group, if there is one.
func limitPids(p agentprotocol.Plan) error {
	if !underGVisor() {
		return nil
	}
	return os.WriteFile(programPids+"/pids.max", []byte(strconv.FormatInt(p.Processes, 10)), 0)
}

// joinPidsGroup moves this thread of a launcher into the control group, if there is one, so that its program starts
// there, and unmounts the hierarchy. leave moves the thread out again.
func joinPidsGroup() (leave func(), err error) {
	in, err := unix.Open(programPids+"/tasks", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return func() {}, nil
	}
	if err != nil {
		return nil, sysErr("open", programPids, err)
	}
	defer unix.Close(in)
	out, err := unix.Open(pidsAt+"/tasks", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sysErr("open", pidsAt, err)
	}
	if _, err := unix.Write(in, []byte("0")); err != nil {
		return nil, sysErr("write", programPids, err)
	}
	if err := unix.Unmount(groupsAt, unix.MNT_DETACH); err != nil {
		return nil, sysErr("umount2", groupsAt, err)
	}
	return func() {
		unix.Write(out, []byte("0"))
		unix.Close(out)
	}, nil
}

// setFileUser sets the user id of the calling thread for file access to the code's. Its real user id stays the
// agent's, so that the code cannot send it signals.
func setFileUser(p agentprotocol.Plan) error {
	err := errors.Join(unix.Setfsgid(int(p.GID)), unix.Setfsuid(int(p.UID)))
	if !errors.Is(err, unix.ENOSYS) {
		return sysErr("setfsuid", strconv.FormatInt(p.UID, 10), err)
	}
	// The raw system call changes this thread alone; the standard library would change all threads.
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(p.GID), same); errno != 0 {
		return sysErr("setresgid", strconv.FormatInt(p.GID, 10), errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(p.UID), same); errno != 0 {
		return sysErr("setresuid", strconv.FormatInt(p.UID, 10), errno)
	}
	return nil
}

// resizeWritable changes the size of the file system of the writable folders. gVisor cannot resize a tmpfs, so a
// new one replaces it while no program uses the old one. The caller holds d.mu.
func (d *server) resizeWritable(p agentprotocol.Plan) error {
	if !underGVisor() {
		return remountWritable(p)
	}
	if len(d.open) > 0 {
		return fmt.Errorf("the disk cannot be resized while a request is in progress: %w", unix.EBUSY)
	}
	return mountWritableFrom(p, func(from, to string) error { return moveContents(p, from, to) })
}

// moveContents copies the contents of a folder to its replacement and unmounts the old folder.
func moveContents(p agentprotocol.Plan, from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	err := filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == to {
			return err
		}
		return os.Lchown(path, int(p.UID), int(p.GID))
	})
	if err != nil {
		return err
	}
	return sysErr("umount2", from, unix.Unmount(from, unix.MNT_DETACH))
}
