package manager

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrMemory is returned if a sandbox's memory exceeds what is left of the limit of all sandboxes, or of one
// principal.
var ErrMemory = errors.New("not enough memory for this sandbox")

// grantedMemory is the memory in MiB that open sandboxes, and those being made, may use by their limits. It is
// guarded by Manager.mu.
type grantedMemory struct {
	all int
	of  map[string]int // by principal
}

// grant reserves memory for a sandbox, or returns why it cannot.
func (m *Manager) grant(owner string, mib int) error {
	principal := principalOf(owner)
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &m.granted
	switch {
	case m.o.MemoryMiB > 0 && g.all+mib > m.o.MemoryMiB:
		return fmt.Errorf("%w: memory_mib is %d; of the %d MiB for all sandboxes of this host %d are left",
			ErrMemory, mib, m.o.MemoryMiB, max(m.o.MemoryMiB-g.all, 0))
	case m.o.PrincipalMiB > 0 && g.of[principal]+mib > m.o.PrincipalMiB:
		return fmt.Errorf("%w: memory_mib is %d; of the %d MiB for all your sandboxes %d are left", ErrMemory,
			mib, m.o.PrincipalMiB, max(m.o.PrincipalMiB-g.of[principal], 0))
	}
	if g.of == nil {
		g.of = map[string]int{}
	}
	g.all += mib
	g.of[principal] += mib
	return nil
}

// releaseMemory returns the memory of a box, once. The caller holds m.mu.
func (m *Manager) releaseMemory(b *Box) {
	principal := principalOf(b.owner)
	m.granted.all -= b.memory
	if m.granted.of[principal] -= b.memory; m.granted.of[principal] == 0 {
		delete(m.granted.of, principal)
	}
	b.memory = 0
}

// split separates an owner into its principal and context.
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

// MachineMiB returns the memory of this machine, or of the container this process runs in if that is less; 0
// if it is unknown.
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
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is not a number
			take(n)
		}
	}
	return least
}
