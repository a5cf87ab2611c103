//go:build amd64 || arm64

package namespaces

import (
	"syscall"

	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// attributes returns how to start the agent of a slot of user ids. code are the ids of the host that the code has; nil
// means those of the slot.
func attributes(u *rootfs.Users, slot int, code *owner) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Setsid:    true,
		Pdeathsig: syscall.SIGKILL,
	}
	uid, gid, size := u.Range(slot)
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: size}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: size}}
	if code != nil {
		a.UidMappings, a.GidMappings = withCode(uid, size, code.uid), withCode(gid, size, code.gid)
	}
	a.GidMappingsEnableSetgroups = !u.Single
	a.Credential = &syscall.Credential{NoSetGroups: u.Single}
	return a
}

// withCode maps a range of ids, except that the code has one of the host.
func withCode(first, size int, code uint32) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: first, Size: rootfs.CodeID},
		{ContainerID: rootfs.CodeID, HostID: int(code), Size: 1},
		{ContainerID: rootfs.CodeID + 1, HostID: first + rootfs.CodeID + 1, Size: size - rootfs.CodeID - 1},
	}
}
