//go:build linux && amd64

package qemu

import (
	"context"
	"time"
)

// ticks reads the processor's time stamp counter, which emulated machines use as their clock. A kernel in an
// emulated machine cannot measure the counter's frequency, because its interrupts are late, so the frequency
// is passed to it.
func ticks() int64

// reading is the value of the counter at a time.
type reading struct {
	ticks int64
	at    time.Time
}

const (
	readings = 10                     // number of attempts; the least delayed one counts
	span     = 200 * time.Millisecond // least time between two readings, for a precision of a few millionths
)

func readCounter() (best reading) {
	least := time.Duration(1<<63 - 1)
	for range readings {
		before := time.Now()
		n := ticks()
		if took := time.Since(before); took < least {
			least, best = took, reading{n, before.Add(took / 2)}
		}
	}
	return best
}

// counterKHz returns the counter's frequency, measured since the driver was made.
func (d *Driver) counterKHz(ctx context.Context) (int, error) {
	select {
	case <-time.After(span - time.Since(d.began.at)):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	now := readCounter()
	return int(float64(now.ticks-d.began.ticks) / float64(now.at.Sub(d.began.at)) * 1e6), nil
}
