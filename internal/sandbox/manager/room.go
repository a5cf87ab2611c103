package manager

import (
	"fmt"

	"gatehouse/internal/sandbox"
)

// room is what a snapshot that is being made takes of what all of them may.
type room struct {
	bytes int64
	whole bool // as much as the sandbox may have
	stays bool // it is no fork's, and counts as one
}

// mostOf is how much there may be to keep of a sandbox: what its limits allow,
// and of an archive the heads of its entries too.
func mostOf(b *Box) int64 {
	l := b.Limits()
	disk := int64(l.DiskMiB) << 20
	switch b.Sandbox.(type) {
	case sandbox.Snapshotter:
		return int64(l.MemoryMiB)<<20 + disk
	case sandbox.Archive:
		return disk + disk/4 + 1<<20
	}
	return 0 // nothing of it can be kept
}

// reserveSnapshot takes room for what is about to be kept of a sandbox, so that
// many at once do not take more than there is. Of an archive the room that is
// left may do, since it can be ended where that does.
func (m *Manager) reserveSnapshot(b *Box, stays bool) (r room, err error) {
	most := mostOf(b)
	_, memory := b.Sandbox.(sandbox.Snapshotter)
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.o.SnapshotBytes - m.snapshotBytes()
	switch n := len(m.snapshots) + m.keeping; {
	case m.closed:
		return room{}, errEnded
	case stays && n >= m.o.Snapshots:
		return room{}, fmt.Errorf("%w (%d)", ErrSnapshotsFull, n)
	case most > 0 && left <= 0 || memory && most > left:
		return room{}, fmt.Errorf("%w (this one may have up to %d MiB, by the limits of its sandbox, and there is room for %d)", ErrSnapshotsFull, most>>20, max(left, 0)>>20)
	}
	r = room{min(most, left), most <= left, stays}
	m.reserved += r.bytes
	if stays {
		m.keeping++
	}
	return r, nil
}

// resize has it take what it came to. m.mu is held.
func (m *Manager) resize(r *room, bytes int64) {
	m.reserved += bytes - r.bytes
	r.bytes = bytes
}

// giveBack gives room back. m.mu is held.
func (m *Manager) giveBack(r room) {
	m.reserved -= r.bytes
	if r.stays {
		m.keeping--
	}
}

// snapshotBytes is what all of them take, those included that are being made.
// m.mu is held.
func (m *Manager) snapshotBytes() int64 {
	n := m.reserved
	for _, s := range m.snapshots {
		n += s.Size
	}
	return n
}
