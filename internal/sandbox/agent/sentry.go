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

// A kernel in user space answers most calls as Linux does, and some not at all.
// What is done there instead is in this file.

// ownKernel reports whether the host said that this is such a kernel.
func ownKernel() bool { return len(os.Args) == 2 && os.Args[1] == stdioName }

// attribute sets attributes of what is mounted at a path, if need be by mounting
// it again.
func attribute(at string, attr uint64) error {
	err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: attr})
	if !errors.Is(err, unix.ENOSYS) {
		return call("mount_setattr", at, err)
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
	return call("mount", "again, "+at, unix.Mount("", at, "", flags, ""))
}

// Such a kernel does not hold a user to a number of processes, but it has
// control groups. Theirs is mounted where nobody but the agent and the stages
// gets to, and only until a stage has begun its program.
const (
	groupsAt  = "/run"
	pidsAt    = groupsAt + "/pids"
	codesPids = pidsAt + "/code"
)

// makePids makes the control group of all programs together.
func makePids(p agentprotocol.Plan) error {
	if err := unix.Mount("tmpfs", groupsAt, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=700,size=4k"); err != nil {
		return call("mount", "tmpfs of the groups", err)
	}
	if err := unix.Mkdir(pidsAt, 0o700); err != nil {
		return call("mkdir", pidsAt, err)
	}
	if err := unix.Mount("cgroup", pidsAt, "cgroup", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "pids"); err != nil {
		return call("mount", "cgroup", err)
	}
	if err := unix.Mkdir(codesPids, 0o700); err != nil {
		return call("mkdir", codesPids, err)
	}
	return sizePids(p)
}

// sizePids sets how many processes and threads may be in it, if there is one.
func sizePids(p agentprotocol.Plan) error {
	if !ownKernel() {
		return nil
	}
	return os.WriteFile(codesPids+"/pids.max", []byte(strconv.FormatInt(p.Processes, 10)), 0)
}

// joinPids takes this thread of a stage into the group, if there is one, so
// that its program is born there. leave takes the thread out again. From here on
// the group is out of sight.
func joinPids() (leave func(), err error) {
	in, err := unix.Open(codesPids+"/tasks", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return func() {}, nil
	}
	if err != nil {
		return nil, call("open", codesPids, err)
	}
	defer unix.Close(in)
	out, err := unix.Open(pidsAt+"/tasks", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, call("open", pidsAt, err)
	}
	if _, err := unix.Write(in, []byte("0")); err != nil {
		return nil, call("write", codesPids, err)
	}
	if err := unix.Unmount(groupsAt, unix.MNT_DETACH); err != nil {
		return nil, call("umount2", groupsAt, err)
	}
	return func() {
		unix.Write(out, []byte("0"))
		unix.Close(out)
	}, nil
}

// filesAs makes the calling thread's file accesses those of the code's user. Its
// real user stays the agent's, so that the code cannot send it signals.
func filesAs(p agentprotocol.Plan) error {
	err := errors.Join(unix.Setfsgid(int(p.GID)), unix.Setfsuid(int(p.UID)))
	if !errors.Is(err, unix.ENOSYS) {
		return call("setfsuid", strconv.FormatInt(p.UID, 10), err)
	}
	// Those of the standard library would do it to all threads.
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(p.GID), same); errno != 0 {
		return call("setresgid", strconv.FormatInt(p.GID, 10), errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(p.UID), same); errno != 0 {
		return call("setresuid", strconv.FormatInt(p.UID, 10), errno)
	}
	return nil
}

// resizeWork changes how much all that can be written may be. Such a kernel does
// not change the size of a file system, so that another one takes its place,
// while no program runs that has the old one. The caller holds the desk's lock.
func (d *desk) resizeWork(p agentprotocol.Plan) error {
	if !ownKernel() {
		return resizeWork(p)
	}
	if len(d.open) > 0 {
		return fmt.Errorf("the size of the disk cannot be changed while something is under way: %w", unix.EBUSY)
	}
	return makeWorkOf(p, func(from, to string) error { return takeAlong(p, from, to) })
}

// takeAlong copies what is at a path to a folder that is to take its place, and
// takes it away there.
func takeAlong(p agentprotocol.Plan, from, to string) error {
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
	return call("umount2", from, unix.Unmount(from, unix.MNT_DETACH))
}
