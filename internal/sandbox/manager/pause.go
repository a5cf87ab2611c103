package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/sandbox"
)

// ErrUnsupported is the answer to what the driver of a sandbox cannot do.
var ErrUnsupported = errors.New("it cannot be done in this sandbox")

func unsupported(b *Box, what string) error {
	return fmt.Errorf("%w: those of the driver %s %s", ErrUnsupported, b.Driver, what)
}

// Pause stops all that runs in it. While it is paused the time for which it
// may stay unused does not pass; its lifetime does. It may be paused already.
func (b *Box) Pause(ctx context.Context) error {
	p, ok := b.Sandbox.(sandbox.Pausable)
	if !ok {
		return unsupported(b, "cannot be paused")
	}
	b.pausing.Lock()
	defer b.pausing.Unlock()
	if err := p.Pause(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	b.paused = true
	b.mu.Unlock()
	return nil
}

// Resume lets all go on that Pause stopped. It may not be paused at all.
func (b *Box) Resume(ctx context.Context) error {
	p, ok := b.Sandbox.(sandbox.Pausable)
	if !ok {
		return unsupported(b, "cannot be paused")
	}
	b.pausing.Lock()
	defer b.pausing.Unlock()
	if err := p.Resume(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused, b.last = false, time.Now()
	if b.timer != nil && !b.left {
		b.timer.Reset(b.wait(b.last))
	}
	return nil
}

// Paused reports whether it is.
func (b *Box) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}
