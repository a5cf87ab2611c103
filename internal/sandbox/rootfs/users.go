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

// The ids of sandboxes on hosts that may assign them: a range for each, above those that users, services and
// other container engines use, and one for the files of sandboxes with users of their own.
const (
	firstID = 0x70000000
	idRange = 1 << 16
	slots   = 4000

	// CodeID is the user id and the group id of the code in the sandbox.
	CodeID = 1000
)

// Users assigns ids, so that no two sandboxes of this host share one.
type Users struct {
	Single bool // only the ids of this process can be used

	mu   sync.Mutex
	used map[int]bool
}

// NewUsers checks whether this process may use ids other than its own.
func NewUsers() *Users {
	return &Users{Single: !(mayMap() && has(unix.CAP_SETUID) && has(unix.CAP_SETGID)), used: map[int]bool{}}
}

// mayMap reports whether the ids exist in this user namespace.
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
		if errors.Join(err1, err2) == nil && first <= firstID && first+count >= firstID+(slots+1)*idRange {
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

// Acquire returns a free slot, chosen at random, so that other hosts on the machine rarely use the same.
func (u *Users) Acquire() (slot int, err error) {
	if u.Single {
		return 0, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.used) >= slots/2 {
		return 0, errors.New("too many sandboxes are open for each to have user ids of its own")
	}
	for {
		if slot = rand.IntN(slots); !u.used[slot] {
			u.used[slot] = true
			return slot, nil
		}
	}
}

// Release frees a slot.
func (u *Users) Release(slot int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.used, slot)
}

// Range returns the host's ids of a slot. They start at 0 in the sandbox.
func (u *Users) Range(slot int) (uid, gid, size int) {
	if u.Single {
		return os.Geteuid(), os.Getegid(), 1
	}
	first := firstID + slot*idRange
	return first, first, idRange
}
