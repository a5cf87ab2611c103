//go:build linux

// Package landlock closes files to a thread and what it starts, where the
// kernel has Landlock.
package landlock

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights of the kernel's first version, and what later ones added.
const (
	reading = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	first   = 1<<13 - 1 // reading, and every way to write, make and remove
	refer   = unix.LANDLOCK_ACCESS_FS_REFER
	cut     = unix.LANDLOCK_ACCESS_FS_TRUNCATE
	devices = unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// ofFiles are the rights that a file, as opposed to a folder, can have.
const ofFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | cut | devices

// Version is that of the kernel's Landlock, 0 when there is none.
func Version() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// handled are the rights the kernel of that version knows.
func handled(version int) uint64 {
	rights := uint64(first)
	if version >= 2 {
		rights |= refer
	}
	if version >= 3 {
		rights |= cut
	}
	if version >= 5 {
		rights |= devices
	}
	return rights
}

// Restrict lets the calling thread and what it starts read and run everything
// and write below writable only, for good. From version 6 on they signal
// nobody outside and reach no abstract socket of anybody outside. The caller
// holds its thread by runtime.LockOSThread and has no_new_privs set. What is
// not there is left out. Without Landlock it does nothing.
func Restrict(writable []string) error {
	version := Version()
	if version == 0 {
		return nil
	}
	all := handled(version)
	attr := unix.LandlockRulesetAttr{Handled_access_fs: all}
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	rules := int(fd)
	defer unix.Close(rules)
	if err := permit(rules, "/", reading); err != nil {
		return err
	}
	for _, w := range writable {
		if err := permit(rules, w, all); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

func permit(rules int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open(%s): %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat(%s): %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= ofFiles
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("landlock_add_rule(%s): %w", path, errno)
	}
	return nil
}
