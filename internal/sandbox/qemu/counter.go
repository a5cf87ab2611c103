//go:build linux && amd64

package qemu

import (
	"context"
	"time"
)

// ticks reads the processor's counter, by which machines go whose processor is
// emulated. A kernel in one cannot measure how fast it is, since an emulated
// machine is late for the interrupts it would go by; so it is told.
func ticks() int64

// reading is what the counter was at a time.
type reading struct {
	ticks int64
	at    time.Time
}

const (
	readings = 10                     // of which the one counts that was held up least
	span     = 200 * time.Millisecond // at least between two, so that they tell a few millionths
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

// counterKHz is how fast the counter goes, measured since the driver was made.
func (d *Driver) counterKHz(ctx context.Context) (int, error) {
	select {
	case <-time.After(span - time.Since(d.began.at)):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	now := readCounter()
	return int(float64(now.ticks-d.began.ticks) / float64(now.at.Sub(d.began.at)) * 1e6), nil
}
