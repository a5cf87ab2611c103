package manager

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrMemory is the answer when a sandbox's memory would be more than is left of
// what all sandboxes, or all of one principal, may have together.
var ErrMemory = errors.New("there is no memory left for this sandbox")

// granted is the memory that living sandboxes may use by their limits, and that
// of those which are being made, in MiB. Manager.mu guards it.
type granted struct {
	all int
	of  map[string]int // by principal
}

// grant takes memory for a sandbox, or says why there is none.
func (m *Manager) grant(owner string, mib int) error {
	principal := principalOf(owner)
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &m.granted
	switch {
	case m.o.MemoryMiB > 0 && g.all+mib > m.o.MemoryMiB:
		return fmt.Errorf("%w: memory_mib is %d, and of the %d MiB for all sandboxes of this host %d are left", ErrMemory, mib, m.o.MemoryMiB, max(m.o.MemoryMiB-g.all, 0))
	case m.o.PrincipalMiB > 0 && g.of[principal]+mib > m.o.PrincipalMiB:
		return fmt.Errorf("%w: memory_mib is %d, and of the %d MiB that you may have together %d are left", ErrMemory, mib, m.o.PrincipalMiB, max(m.o.PrincipalMiB-g.of[principal], 0))
	}
	if g.of == nil {
		g.of = map[string]int{}
	}
	g.all += mib
	g.of[principal] += mib
	return nil
}

// release gives back what a box was granted, once. m.mu is held.
func (m *Manager) release(b *Box) {
	principal := principalOf(b.owner)
	m.granted.all -= b.memory
	if m.granted.of[principal] -= b.memory; m.granted.of[principal] == 0 {
		delete(m.granted.of, principal)
	}
	b.memory = 0
}

// split parts an owner into its principal and context.
func split(owner string) (principal, context string) {
	if i := strings.LastIndexByte(owner, '/'); i >= 0 {
		return owner[:i], owner[i+1:]
	}
	return "", owner
}

func principalOf(owner string) string {
	if principal, _ := split(owner); principal != "" {
		return principal
	}
	return owner
}

// MachineMiB is the memory of this machine, or of the container this process is
// in if that is less; 0 where it is not known.
func MachineMiB() int {
	least := 0
	take := func(bytes int64) {
		if mib := int(bytes >> 20); mib > 0 && (least == 0 || mib < least) {
			least = mib
		}
	}
	if f, err := os.Open("/proc/meminfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "MemTotal:" {
				kib, _ := strconv.ParseInt(fields[1], 10, 64)
				take(kib << 10)
			}
		}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if b, err := os.ReadFile(file); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
			take(n)
		}
	}
	return least
}
