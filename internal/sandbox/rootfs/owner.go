//go:build linux

package rootfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// AsOwner calls f on a thread whose effective user is the first of a slot, with all its capabilities. A user
// namespace made by f belongs to that user, so that what the kernel counts for each user (inotify instances, timers,
// queues and more) counts for the sandbox's own, and not for the user of this process. Without ids of its own, or
// without the capability to keep the others, f is called as it is. The caller has locked its thread.
func (u *Users) AsOwner(slot int, f func() error) error {
	if u.Single || !keepCapabilities() {
		return f()
	}
	// The kernel makes a process that changes its user one that cannot be dumped.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("prctl(PR_GET_DUMPABLE): %w", err)
	}
	uid, _, _ := u.Range(slot)
	if err := setThreadUser(uid); err != nil {
		return err
	}
	// If the thread cannot be set back, for lack of memory, it is as capable as before, and the next call tries again.
	defer func() { _ = errors.Join(setThreadUser(unix.Getuid()), restoreDumpable(dumpable)) }()
	return f()
}

// keepCapabilities lets this thread keep its capabilities if its user changes.
func keepCapabilities() bool {
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	const noSetuidFixup = 1 << 2
	if err != nil || bits&noSetuidFixup != 0 {
		return err == nil
	}
	return unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|noSetuidFixup), 0, 0, 0) == nil
}

// setThreadUser sets the effective user of this thread alone; the standard library would set that of all threads.
func setThreadUser(uid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return fmt.Errorf("setresuid(%d): %w", uid, errno)
	}
	return nil
}

func restoreDumpable(dumpable int) error {
	if dumpable != 1 { // 2 cannot be set; it is what the kernel has made of it
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", err)
	}
	return nil
}
