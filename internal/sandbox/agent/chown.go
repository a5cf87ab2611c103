//go:build linux && (amd64 || arm64)

package agent

import (
	"bytes"
	"errors"
	"strconv"
	"unsafe"

	"gatehouse/internal/sandbox/seccomp"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// keepOwners installs a filter for the calling thread that keeps the owners of files: see seccomp.KeepOwners. The
// launcher answers the calls that change an owner, so that those for files that do not exist fail. On a kernel before
// Linux 5.19, which cannot report calls so, they succeed as well.
func keepOwners(filter []bpf.Instruction, uid, gid uint32) error {
	listener, err := seccomp.Listen(seccomp.KeepOwners(filter, uid, gid, true))
	if errors.Is(err, unix.EINVAL) {
		return seccomp.Install(seccomp.KeepOwners(filter, uid, gid, false))
	}
	if err == nil {
		go answerOwners(listener)
	}
	return err
}

// ownerCall is the kernel's struct seccomp_notif.
type ownerCall struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	at         uint64
	args       [6]uint64
}

// answerOwners answers the calls that a listener reports, until the launcher ends.
func answerOwners(listener int) {
	for {
		var c ownerCall // which the kernel wants to be zero
		err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&c))
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // the caller was killed
			continue
		}
		if err != nil {
			return
		}
		answer := struct {
			id    uint64
			value int64
			errno int32
			flags uint32
		}{id: c.id, errno: -int32(c.check())}
		_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)) // it fails if the caller was killed
	}
}

// check returns the error number of a call: 0 if the file exists.
func (c *ownerCall) check() unix.Errno {
	dir, path, flags := int32(unix.AT_FDCWD), c.args[0], 0
	switch uint32(c.nr) {
	case unix.SYS_FCHOWN:
		dir, path = int32(c.args[0]), 0
	case unix.SYS_FCHOWNAT:
		dir, path, flags = int32(c.args[0]), c.args[1], int(int32(c.args[4]))
	default:
		if seccomp.IsLchown(uint32(c.nr)) {
			flags = unix.AT_SYMLINK_NOFOLLOW
		}
	}
	name, errno := "", unix.Errno(0)
	if path != 0 {
		if name, errno = c.readPath(uintptr(path)); errno != 0 {
			return errno
		}
		if name == "" && flags&unix.AT_EMPTY_PATH == 0 {
			return unix.ENOENT
		}
	}
	process := "/proc/" + strconv.Itoa(int(c.pid))
	from, missing := process+"/cwd", unix.ENOENT
	if dir != unix.AT_FDCWD {
		from, missing = process+"/fd/"+strconv.Itoa(int(dir)), unix.EBADF
	}
	if name != "" && name[0] == '/' {
		from = "/"
	}
	fd, err := unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return missing
	}
	defer unix.Close(fd)
	if name == "" {
		return 0
	}
	var st unix.Stat_t
	err = unix.Fstatat(fd, name, &st, flags&unix.AT_SYMLINK_NOFOLLOW)
	for _, e := range []unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return e
		}
	}
	return 0
}

// readPath reads a path in the memory of the caller.
func (c *ownerCall) readPath(at uintptr) (string, unix.Errno) {
	b := make([]byte, unix.PathMax)
	n := 0
	for n < len(b) { // a read that crosses into a page that is not mapped reads nothing
		part := min(len(b)-n, 4096-int((at+uintptr(n))%4096))
		got, err := unix.ProcessVMReadv(int(c.pid), []unix.Iovec{{Base: &b[n], Len: uint64(part)}},
			[]unix.RemoteIovec{{Base: at + uintptr(n), Len: part}}, 0)
		if err != nil || got <= 0 {
			return "", unix.EFAULT
		}
		if end := bytes.IndexByte(b[n:n+got], 0); end >= 0 {
			return string(b[:n+end]), 0
		}
		n += got
	}
	return "", unix.ENAMETOOLONG
}
