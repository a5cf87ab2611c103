//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// userCounts are resources of which the kernel gives each user of the machine a fixed number: the file that limits
// them in the sandbox's user namespace, and the file with the number. What a sandbox takes also counts for the user
// of the host who owns the namespace.
var userCounts = []struct{ limit, most string }{
	{"/proc/sys/user/max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"},
	{"/proc/sys/user/max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"},
	{"/proc/sys/user/max_fanotify_groups", "/proc/sys/fs/fanotify/max_user_groups"},
	{"/proc/sys/user/max_fanotify_marks", "/proc/sys/fs/fanotify/max_user_marks"},
}

// limitCounts gives the sandbox a part of what each user of the machine has: half if the owner of its namespace owns
// nothing else, otherwise a sixteenth. The kernel of a machine or of gVisor serves no one else.
func limitCounts(p agentprotocol.Plan) error {
	if underGVisor() || p.MemoryBytes > 0 {
		return nil
	}
	parts := 16
	if owner, err := namespaceOwner(); err != nil {
		return err
	} else if !p.SingleUser && !p.Range && owner == 0 {
		parts = 2
	}
	for _, c := range userCounts {
		b, err := os.ReadFile(c.most)
		if errors.Is(err, os.ErrNotExist) {
			continue // the kernel lacks this resource
		}
		if err != nil {
			return err
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.limit, strconv.AppendInt(nil, int64(most/parts), 10), 0); err != nil {
			return err
		}
	}
	return nil
}

// namespaceOwner returns the user, as numbered in this user namespace, who owns it on the host. A user who does not
// exist in the namespace has another number than 0.
func namespaceOwner() (uid uint32, err error) {
	fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, sysErr("open", "/proc/self/ns/user", err)
	}
	defer unix.Close(fd)
	const nsGetOwnerUID = 0xb704
	uid, err = unix.IoctlGetUint32(fd, nsGetOwnerUID)
	return uid, sysErr("ioctl", "NS_GET_OWNER_UID", err)
}
