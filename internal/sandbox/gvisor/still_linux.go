//go:build amd64 || arm64

package gvisor

import (
	"context"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// standing is whether a sandbox stands still.
type standing struct {
	// over ends with the sandbox, which may be in the middle of a pause.
	over context.Context
	end  context.CancelFunc

	mu     sync.Mutex // held while it stops, goes on and is kept
	paused bool
}

// enter locks it for something that is to be done within ctx, which then also
// ends with the sandbox.
func (b *box) enter(ctx context.Context) (context.Context, func(), error) {
	b.still.mu.Lock()
	select {
	case <-b.still.over.Done():
	case <-b.Link.Done():
	default:
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(b.still.over, func() { cancel(sandbox.ErrClosed) })
		return ctx, func() {
			stop()
			cancel(nil)
			b.still.mu.Unlock()
		}, nil
	}
	b.still.mu.Unlock()
	return nil, nil, sandbox.ErrClosed
}

// Pause is that of sandbox.Pausable. The kernel in user space stops everything
// in it, after the agent has said what it had to say.
func (b *box) Pause(ctx context.Context) error {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if b.still.paused {
		return nil
	}
	if err := b.Link.Still(ctx); err != nil {
		return err
	}
	if err := b.order("pause"); err != nil {
		b.Let()
		return err
	}
	b.still.paused = true
	return nil
}

// Resume is that of sandbox.Pausable.
func (b *box) Resume(ctx context.Context) error {
	_, leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !b.still.paused {
		return nil
	}
	if err := b.order("resume"); err != nil {
		return err
	}
	b.still.paused = false
	b.Let()
	return nil
}

// order has runsc stop it or let it go on, whoever gives up waiting: what is
// given up halfway may be done all the same, and nobody would know.
func (b *box) order(what string) error {
	ctx, cancel := context.WithTimeout(b.still.over, ordering)
	defer cancel()
	return b.driver.runsc.do(ctx, b.bundle, what, b.id)
}

const ordering = 30 * time.Second

// isPaused is sandbox.ErrPaused while it is.
func (b *box) isPaused() error {
	b.still.mu.Lock()
	defer b.still.mu.Unlock()
	if b.still.paused {
		return sandbox.ErrPaused
	}
	return nil
}

// Usage is that of sandbox.Measured, with what the kernel in user space needs
// itself. How many processes there are in it the host cannot see.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return sandbox.Usage{}, err
	}
	defer leave()
	if b.still.paused {
		return sandbox.Usage{}, sandbox.ErrPaused
	}
	u := b.group.Usage()
	u.Processes = -1
	if u.Disk, err = b.DiskUsed(ctx); err != nil {
		return sandbox.Usage{}, err
	}
	return u, nil
}
