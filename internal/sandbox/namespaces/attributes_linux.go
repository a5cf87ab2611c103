//go:build amd64 || arm64

package namespaces

import (
	"syscall"

	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// attributes returns how to start the agent of a slot of user ids.
func attributes(u *rootfs.Users, slot int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Setsid:    true,
		Pdeathsig: syscall.SIGKILL,
	}
	uid, gid, size := u.Range(slot)
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: size}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: size}}
	a.GidMappingsEnableSetgroups = !u.Single
	a.Credential = &syscall.Credential{NoSetGroups: u.Single}
	return a
}
