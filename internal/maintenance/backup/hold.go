package backup

import (
	"sync"
	"time"
)

// holdFor is how long a Hold may wait to begin. The job that was to use it may
// have been cancelled before it ran, and then nothing releases it.
const holdFor = time.Minute

// Hold is the right to make or restore one backup in a Room, which is given
// before the work begins, so that the second who asks is refused at once. It
// serves one Create or Restore. Release ends it.
type Hold struct {
	room  *Room
	since time.Time // guarded by room.mu
	begun bool      // guarded by room.mu
	once  sync.Once
}

// Reserve gives the right to make or restore a backup; ErrBusy while another
// has it. It lapses if it is not used within a minute.
func (r *Room) Reserve() (*Hold, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.now()
	if h := r.holder; h != nil && (h.begun || now.Sub(h.since) < holdFor) {
		return nil, ErrBusy
	}
	r.holder = &Hold{room: r, since: now}
	return r.holder, nil
}

// begin uses the right.
func (h *Hold) begin() error {
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	if h.room.holder != h || h.begun {
		return ErrBusy
	}
	h.begun = true
	return nil
}

// Release gives the right back. It can be called twice.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.room.mu.Lock()
		defer h.room.mu.Unlock()
		if h.room.holder == h {
			h.room.holder = nil
		}
	})
}
