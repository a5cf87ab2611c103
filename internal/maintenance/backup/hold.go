package backup

import (
	"sync"
	"time"
)

// holdFor limits the time before a Hold is used. A job that is cancelled before it
// runs does not release its Hold.
const holdFor = time.Minute

// Hold reserves a Manager for one Create or Restore before the work starts, so that
// a second caller is refused at once. Release ends it.
type Hold struct {
	manager *Manager
	since   time.Time // guarded by manager.mu
	begun   bool      // guarded by manager.mu
	once    sync.Once
}

// Reserve returns a Hold, or ErrBusy while there is another. A Hold expires if it is
// not used within a minute.
func (r *Manager) Reserve() (*Hold, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.now()
	if h := r.holder; h != nil && (h.begun || now.Sub(h.since) < holdFor) {
		return nil, ErrBusy
	}
	r.holder = &Hold{manager: r, since: now}
	return r.holder, nil
}

// use marks the Hold as used.
func (h *Hold) use() error {
	h.manager.mu.Lock()
	defer h.manager.mu.Unlock()
	if h.manager.holder != h || h.begun {
		return ErrBusy
	}
	h.begun = true
	return nil
}

// Release ends the reservation. It can be called twice.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.manager.mu.Lock()
		defer h.manager.mu.Unlock()
		if h.manager.holder == h {
			h.manager.holder = nil
		}
	})
}
