//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// openMounts opens the mounts before the new root covers any of them. The one of a mount that only covers is -1.
func openMounts(mounts []agentprotocol.Mount) ([]int, error) {
	fds := make([]int, len(mounts))
	for i, m := range mounts {
		switch {
		case m.FD != 0:
			fds[i] = int(m.FD)
		case m.From == "":
			fds[i] = -1
		default:
			fd, err := OpenMount(m.From, m.Write, m.Device, -1)
			if err != nil {
				return nil, err
			}
			fds[i] = fd
		}
	}
	return fds, nil
}

// OpenMount opens a detached copy of a mount of the host with everything mounted below it. A symbolic link on the way
// is an error, because whoever may write beside the folder could have made it. users is a user namespace whose map
// says who owns the files in the sandbox, -1 if they have the same owners. The agent uses it, and a host that has the
// permission to mount.
func OpenMount(from string, write, device bool, users int) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, from, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, sysErr("openat2", from, err)
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, sysErr("open_tree", from, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if !device {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
		if !write {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
	}
	if users >= 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, sysErr("mount_setattr", from, err)
	}
	return fd, nil
}

// attachMounts mounts what was opened. The working directory is the new root.
func attachMounts(fds []int, mounts []agentprotocol.Mount) error {
	for i, m := range mounts {
		var err error
		if fds[i] < 0 {
			err = coverMount(m.To)
		} else {
			err = attachMount(fds[i], m.To)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func attachMount(fd int, to string) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return sysErr("fstat", to, err)
	}
	point, err := openPoint(to, st.Mode&unix.S_IFMT == unix.S_IFDIR, true)
	if err != nil {
		return err
	}
	defer unix.Close(point)
	return sysErr("move_mount", to, unix.MoveMount(fd, "", point, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// coverMount mounts an empty folder or file over what is at a path, if there is something.
func coverMount(to string) error {
	point, err := openPoint(to, true, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(point)
	var st unix.Stat_t
	if err := unix.Fstat(point, &st); err != nil {
		return sysErr("fstat", to, err)
	}
	empty := "dev/null"
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		empty = "sys"
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, empty, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return sysErr("open_tree", empty, err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return sysErr("mount_setattr", to, err)
	}
	return sysErr("move_mount", to, unix.MoveMount(fd, "", point, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// openPoint opens the place of a mount in the new root, and makes what is missing if it may. It follows no symbolic
// link: what code wrote into a folder of the host could lead out of the new root, which is not the root yet.
func openPoint(to string, folder, create bool) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open(".", flags|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, sysErr("open", ".", err)
	}
	parts := strings.Split(inside(to), "/")
	for i, part := range parts {
		next, err := unix.Openat(at, part, flags, 0)
		if errors.Is(err, unix.ENOENT) && create {
			if err = makePoint(at, part, folder || i < len(parts)-1); err == nil {
				next, err = unix.Openat(at, part, flags, 0)
			}
		}
		unix.Close(at)
		if err != nil {
			return -1, sysErr("openat", to, err)
		}
		var st unix.Stat_t
		if err = unix.Fstat(next, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = fmt.Errorf("%s of it is a symbolic link: %w", part, unix.ELOOP)
		}
		if err != nil {
			unix.Close(next)
			return -1, sysErr("mount at", to, err)
		}
		at = next
	}
	return at, nil
}

func makePoint(at int, name string, folder bool) error {
	if folder {
		return unix.Mkdirat(at, name, 0o755)
	}
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// writableMounts returns the paths of mounts that the code may write.
func writableMounts(mounts []agentprotocol.Mount) (paths []string) {
	for _, m := range mounts {
		if m.Write || m.Device {
			paths = append(paths, m.To)
		}
	}
	return paths
}
