// Package wallclock sets a clock for tests, as an administrator or NTP does: the
// time of day jumps, and the monotonic clock goes on.
package wallclock

import (
	"sync"
	"time"
	"unsafe"
)

// Clock is a clock that can be set. The zero value is right. Safe for concurrent
// use.
type Clock struct {
	mu  sync.Mutex
	off time.Duration
}

// Set makes the clock wrong by so many whole seconds.
func (c *Clock) Set(off time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off.Truncate(time.Second)
}

// Now is time.Now by this clock. Spans between two of its times are right, as
// long as both keep their reading of the monotonic clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return shift(time.Now(), c.off)
}

// layout is that of time.Time: it has no way to change one clock's reading alone.
type layout struct {
	wall uint64 // bit 63: there is a monotonic reading; then 33 bits of seconds, 30 of nanoseconds
	ext  int64  // the monotonic reading
	loc  *time.Location
}

func shift(t time.Time, by time.Duration) time.Time {
	const nanosecondBits = 30
	raw := (*layout)(unsafe.Pointer(&t))
	if raw.wall>>63 == 0 {
		return t.Add(by)
	}
	raw.wall += uint64(int64(by/time.Second) << nanosecondBits)
	return t
}
