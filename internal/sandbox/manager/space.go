package manager

import (
	"fmt"

	"gatehouse/internal/sandbox"
)

// snapshotSpace is the space reserved for a snapshot that is being made.
type snapshotSpace struct {
	bytes int64
	whole bool // the space suffices for all that the sandbox may have
	stays bool // it counts as a snapshot; false for a fork
}

// mostOf returns the most bytes that a snapshot may have: what the sandbox's limits allow, and for an archive
// also the headers of its entries.
func mostOf(b *Box) int64 {
	l := b.Limits()
	disk := int64(l.DiskMiB) << 20
	switch b.Sandbox.(type) {
	case sandbox.Snapshotter:
		return int64(l.MemoryMiB)<<20 + disk
	case sandbox.Archive:
		return disk + disk/4 + 1<<20
	}
	return 0 // snapshots are not supported
}

// reserveSnapshot reserves space for a snapshot, so that concurrent calls do not exceed the limit. For an
// archive less than its maximum suffices, because writing it can be stopped.
func (m *Manager) reserveSnapshot(b *Box, stays bool) (r snapshotSpace, err error) {
	most := mostOf(b)
	_, memory := b.Sandbox.(sandbox.Snapshotter)
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.o.SnapshotBytes - m.snapshotBytes()
	switch n := len(m.snapshots) + m.keeping; {
	case m.closed:
		return snapshotSpace{}, errEnded
	case stays && n >= m.o.Snapshots:
		return snapshotSpace{}, fmt.Errorf("%w (%d)", ErrSnapshotsFull, n)
	case most > 0 && left <= 0 || memory && most > left:
		return snapshotSpace{},
			fmt.Errorf("%w (this one may have up to %d MiB, by the limits of its sandbox, and %d MiB are left)",
				ErrSnapshotsFull, most>>20, max(left, 0)>>20)
	}
	r = snapshotSpace{min(most, left), most <= left, stays}
	m.reserved += r.bytes
	if stays {
		m.keeping++
	}
	return r, nil
}

// resize changes the reserved bytes to the actual size. The caller holds m.mu.
func (m *Manager) resize(r *snapshotSpace, bytes int64) {
	m.reserved += bytes - r.bytes
	r.bytes = bytes
}

// giveBack releases a reservation. The caller holds m.mu.
func (m *Manager) giveBack(r snapshotSpace) {
	m.reserved -= r.bytes
	if r.stays {
		m.keeping--
	}
}

// snapshotBytes returns the bytes of all snapshots, including those being made. The caller holds m.mu.
func (m *Manager) snapshotBytes() int64 {
	n := m.reserved
	for _, s := range m.snapshots {
		n += s.Size
	}
	return n
}
