package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/sandbox"
)

// ErrUnsupported is returned for an operation that the driver of a sandbox does not support.
var ErrUnsupported = errors.New("not supported by this sandbox")

func unsupported(b *Box, what string) error {
	return fmt.Errorf("%w: sandboxes of the driver %s %s", ErrUnsupported, b.Driver, what)
}

// Pause stops all programs in it. While it is paused its idle time stops, but its lifetime does not. It may be
// paused already.
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

// Resume continues all programs. It need not be paused.
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
		b.timer.Reset(b.timeUntilEnd(b.last))
	}
	return nil
}

// Paused reports whether the sandbox is paused.
func (b *Box) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}
