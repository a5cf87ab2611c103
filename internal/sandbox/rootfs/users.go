//go:build linux

package rootfs

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The ids that sandboxes get where the host may hand them out: a range for each,
// above those that people, services and other container engines use.
const (
	firstID = 0x70000000
	idRange = 1 << 16
	slots   = 4000

	// CodeID is the user and the group of the code, in the sandbox.
	CodeID = 1000
)

// Users hands out ids, so that no two sandboxes of this host share one.
type Users struct {
	One bool // nobody's ids but our own may be used

	mu   sync.Mutex
	used map[int]bool
}

// NewUsers finds out whether this process may use ids that are not its own.
func NewUsers() *Users {
	return &Users{One: !(mayMap() && has(unix.CAP_SETUID) && has(unix.CAP_SETGID)), used: map[int]bool{}}
}

// mayMap reports whether the ids exist here: in a user namespace there are few.
func mayMap() bool {
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		b, err := os.ReadFile(file)
		if err != nil || !covers(string(b)) {
			return false
		}
	}
	return true
}

func covers(idMap string) bool {
	for line := range strings.Lines(idMap) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseInt(f[0], 10, 64)
		count, err2 := strconv.ParseInt(f[2], 10, 64)
		if errors.Join(err1, err2) == nil && first <= firstID && first+count >= firstID+slots*idRange {
			return true
		}
	}
	return false
}

// has reports whether this thread has a capability in effect.
func has(capability int) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return false
	}
	return caps[capability/32].Effective&(1<<(capability%32)) != 0
}

// Take finds a free slot. It begins anywhere, so that other hosts on the
// machine hardly ever use the same.
func (u *Users) Take() (slot int, err error) {
	if u.One {
		return 0, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.used) >= slots/2 {
		return 0, errors.New("too many sandboxes are alive for each to have users of its own")
	}
	for {
		if slot = rand.IntN(slots); !u.used[slot] {
			u.used[slot] = true
			return slot, nil
		}
	}
}

// Give takes a slot back.
func (u *Users) Give(slot int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.used, slot)
}

// Range is which of the host's ids a slot has, from 0 on in the sandbox.
func (u *Users) Range(slot int) (uid, gid, size int) {
	if u.One {
		return os.Geteuid(), os.Getegid(), 1
	}
	first := firstID + slot*idRange
	return first, first, idRange
}
