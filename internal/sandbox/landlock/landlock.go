//go:build linux

// Package landlock restricts the file access of a thread and of what it starts, if the kernel has Landlock.
package landlock

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights of Landlock's first version, and those that later versions added.
const (
	execute  = unix.LANDLOCK_ACCESS_FS_EXECUTE
	reading  = execute | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	first    = 1<<13 - 1 // reading, and every right to write, create and remove
	refer    = unix.LANDLOCK_ACCESS_FS_REFER
	truncate = unix.LANDLOCK_ACCESS_FS_TRUNCATE
	devices  = unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// ofFiles are the rights that apply to files; the others apply to folders only.
const ofFiles = execute | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | truncate | devices

// Version returns the version of the kernel's Landlock, 0 if it has none.
func Version() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// handled returns the rights that a version knows.
func handled(version int) uint64 {
	rights := uint64(first)
	if version >= 2 {
		rights |= refer
	}
	if version >= 3 {
		rights |= truncate
	}
	if version >= 5 {
		rights |= devices
	}
	return rights
}

// Restrict limits the calling thread and the processes it starts, permanently: they can read everything, start
// the programs at or below executable, all if that is nil, and write only below writable. From version 6 on they
// cannot signal processes outside, nor connect to abstract sockets outside. The caller has locked its thread by
// runtime.LockOSThread and set no_new_privs. Paths that do not exist are left out. Without Landlock it does nothing.
func Restrict(writable, executable []string) error {
	version := Version()
	if version == 0 {
		return nil
	}
	all := handled(version)
	attr := unix.LandlockRulesetAttr{Handled_access_fs: all}
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	rules := int(fd)
	defer unix.Close(rules)
	everywhere := uint64(reading)
	if executable != nil {
		everywhere, all = everywhere&^execute, all&^execute
	}
	if err := addRule(rules, "/", everywhere); err != nil {
		return err
	}
	if err := addRules(rules, writable, all); err != nil {
		return err
	}
	if err := addRules(rules, executable, execute); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// addRules gives rights to the paths that exist.
func addRules(rules int, paths []string, rights uint64) error {
	for _, p := range paths {
		if err := addRule(rules, p, rights); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func addRule(rules int, path string, rights uint64) error {
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
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("landlock_add_rule(%s): %w", path, errno)
	}
	return nil
}
