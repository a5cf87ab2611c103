package limit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/tool"
)

// Shares divides one counted resource of the host among principals: sessions,
// streams, bytes in buffers. Every counted resource is divided by the same rule,
// which is division's. A nil *Shares has no limit. Safe for concurrent use.
type Shares struct {
	what          string
	administrator operator.Func

	mu    sync.Mutex
	d     division
	freed chan struct{} // closed when units are released; nil while no caller waits
	full  uint64
}

// Resource describes what Shares divide.
type Resource struct {
	Name  string // plural, for messages: sessions
	Total int64
	Kept  int64 // of Total, only administrators get these; 0 means a sixteenth, negative none
	// Administrator reports who may have what is kept; nil means no caller.
	Administrator operator.Func
}

// NewShares makes Shares.
func NewShares(r Resource) *Shares {
	s := &Shares{what: r.Name, administrator: r.Administrator}
	s.d.divide(r.Total, r.Kept)
	return s
}

// Held is what one caller holds of a resource. The zero value holds nothing and
// has no limit. Not safe for concurrent use.
type Held struct {
	of *Shares
	by Holder
	n  int64
}

// Acquire takes n units for a caller. The error is a *Busy.
func (s *Shares) Acquire(c *tool.Caller, n int64) (Held, error) {
	if s == nil {
		return Held{}, nil
	}
	return s.Claim(s.holder(c), n)
}

// Claim is Acquire for a holder that is known already.
func (s *Shares) Claim(by Holder, n int64) (Held, error) {
	h := Held{of: s, by: by}
	err := h.Grow(n)
	return h, err
}

// holder says who a caller is to the division.
func (s *Shares) holder(c *tool.Caller) Holder {
	return Holder{Principal: c.Principal, Administrator: s.administrator.By(*c)}
}

// AcquireWait is Acquire that waits for at most patience until others have
// released enough. The other error is the cause of ctx.
func (s *Shares) AcquireWait(ctx context.Context, c *tool.Caller, n int64, patience time.Duration) (Held, error) {
	if s == nil {
		return Held{}, nil
	}
	h := Held{of: s, by: s.holder(c)}
	err := h.GrowWait(ctx, n, patience)
	return h, err
}

// Grow takes n more units. The error is a *Busy.
func (h *Held) Grow(n int64) error {
	if h.of == nil {
		return nil
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if !h.of.d.acquire(h.by, n) {
		h.of.full++
		return h.of.busy(h.by, n)
	}
	h.n += n
	return nil
}

// GrowWait is Grow that waits for at most patience. The other error is the cause
// of ctx.
func (h *Held) GrowWait(ctx context.Context, n int64, patience time.Duration) error {
	var late <-chan time.Time
	for {
		freed, err := h.growOrWatch(n)
		if err == nil || freed == nil {
			return err
		}
		if late == nil {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-freed:
		case <-late:
			h.of.mu.Lock()
			h.of.full++
			h.of.mu.Unlock()
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// growOrWatch takes n more units. If it cannot, freed is closed when another try
// is worthwhile; it is nil if no number of releases would suffice.
func (h *Held) growOrWatch(n int64) (freed <-chan struct{}, err error) {
	s := h.of
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d.acquire(h.by, n) {
		h.n += n
		return nil, nil
	}
	if n > s.d.total {
		s.full++
		return nil, s.busy(h.by, n)
	}
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.freed, s.busy(h.by, n)
}

// busy is the error for a holder that gets no n units. s.mu is held.
func (s *Shares) busy(by Holder, n int64) error {
	mine := s.d.heldBy(by)
	return &Busy{Retry: time.Second, Why: fmt.Sprintf(
		"you have %d of this host's %d %s and want %d more; one caller may have as many as it leaves free",
		mine.used+mine.kept, s.d.total, s.what, n)}
}

// Shrink gives n of the units back.
func (h *Held) Shrink(n int64) {
	if h.of == nil || n <= 0 {
		return
	}
	n = min(n, h.n)
	h.n -= n
	h.of.Release(h.by, n)
}

// Release gives units back that a holder has and that no Held has any more; see Held.Keep.
func (s *Shares) Release(by Holder, n int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.d.release(by, n)
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// Set takes or gives back units so that n are held. The error is a *Busy; then as many
// are held as before.
func (h *Held) Set(n int64) error {
	if h.of == nil || n == h.n {
		return nil
	}
	if n < h.n {
		h.Shrink(h.n - n)
		return nil
	}
	return h.Grow(n - h.n)
}

// Move returns what is held, and leaves h holding nothing.
func (h *Held) Move() Held {
	moved := *h
	h.n = 0
	return moved
}

// Keep leaves h holding nothing and returns the holder, who must give the units back with Shares.Release. It is for
// very many that hold one unit each.
func (h *Held) Keep() Holder {
	h.n = 0
	return h.by
}

// Release gives everything back. It may be called more than once.
func (h *Held) Release() { h.Shrink(h.n) }

// Usage says how many units are in use, and how often a caller did not get any.
func (s *Shares) Usage() (used int64, full uint64) {
	if s == nil {
		return 0, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.d.used + s.d.keptUsed, s.full
}

// Holder is a principal as a division knows it. A principal that has come both
// with and without an administrator's credential counts as two.
type Holder struct {
	Principal     string
	Administrator bool
}

// division is the one definition of a share: a principal may hold as many units
// as are left free. Alone it gets half of them, beside another that takes all it
// can a third, and a principal that holds none finds some free, however many
// others there are and whatever they do. Some units are kept for administrators,
// and divided among those alike when they have used up their share of the
// others. Its owner locks.
type division struct {
	total int64
	kept  int64 // of total, for administrators
	plain bool  // nothing is divided: the first that comes gets it

	used, keptUsed int64
	of             map[Holder]*holding // a few that hold nothing stay, to be used again
}

// mostIdle is how many holders are remembered before those that hold nothing are
// forgotten.
const mostIdle = 256

type holding struct{ used, kept int64 }

// keptOf is what part of a resource is kept for administrators, where its total is
// at least as large.
const keptOf = 16

// divide sets how many units there are, and how many of them are kept for
// administrators: 0 means a part of them, negative none.
func (d *division) divide(total, kept int64) {
	switch {
	case kept < 0:
		kept = 0
	case kept == 0:
		kept = total / keptOf
	}
	d.total, d.kept = total, min(kept, total/2)
}

// heldBy is what a holder holds.
func (d *division) heldBy(h Holder) holding {
	if mine := d.of[h]; mine != nil {
		return *mine
	}
	return holding{}
}

// acquire takes n units for a holder and reports whether it got them.
func (d *division) acquire(h Holder, n int64) bool {
	if d.plain {
		if d.used+n > d.total {
			return false
		}
		d.used += n
		return true
	}
	mine, known := d.of[h]
	if !known {
		mine = &holding{}
	}
	switch {
	case mine.used+n <= d.total-d.kept-d.used:
		mine.used, d.used = mine.used+n, d.used+n
	case h.Administrator && mine.kept+n <= d.kept-d.keptUsed:
		mine.kept, d.keptUsed = mine.kept+n, d.keptUsed+n
	default:
		return false
	}
	if !known {
		if d.of == nil {
			d.of = map[Holder]*holding{}
		}
		d.of[h] = mine
	}
	return true
}

// release gives n units of a holder back, the kept ones first.
func (d *division) release(h Holder, n int64) {
	if d.plain {
		d.used -= n
		return
	}
	mine := d.of[h]
	kept := min(n, mine.kept)
	mine.kept, d.keptUsed = mine.kept-kept, d.keptUsed-kept
	mine.used, d.used = mine.used-(n-kept), d.used-(n-kept)
	if *mine == (holding{}) && len(d.of) > mostIdle {
		delete(d.of, h)
	}
}

// inUse is how many units are held by all.
func (d *division) inUse() int64 { return d.used + d.keptUsed }
