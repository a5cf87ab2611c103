//go:build amd64 || arm64

package gvisor

import (
	"context"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// pauseState is the pause state of a sandbox.
type pauseState struct {
	over context.Context // ends with the sandbox; it bounds calls that have a context of their own
	end  context.CancelFunc

	mu     sync.Mutex // held during Pause, Resume and Snapshot, which may take seconds
	paused bool
}

// enter locks the pause state for an operation. The returned context also ends with the sandbox.
func (b *instance) enter(ctx context.Context) (context.Context, func(), error) {
	b.pauser.mu.Lock()
	select {
	case <-b.pauser.over.Done():
	case <-b.Client.Done():
	default:
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(b.pauser.over, func() { cancel(sandbox.ErrClosed) })
		return ctx, func() {
			stop()
			cancel(nil)
			b.pauser.mu.Unlock()
		}, nil
	}
	b.pauser.mu.Unlock()
	return nil, nil, sandbox.ErrClosed
}

// Pause implements sandbox.Pausable. gVisor stops all processes after the agent has become quiet.
func (b *instance) Pause(ctx context.Context) error {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if b.pauser.paused {
		return nil
	}
	if err := b.Client.Quiesce(ctx); err != nil {
		return err
	}
	if err := b.runPauseCommand("pause"); err != nil {
		b.Continue()
		return err
	}
	b.pauser.paused = true
	return nil
}

// Resume implements sandbox.Pausable.
func (b *instance) Resume(ctx context.Context) error {
	_, leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !b.pauser.paused {
		return nil
	}
	if err := b.runPauseCommand("resume"); err != nil {
		return err
	}
	b.pauser.paused = false
	b.Continue()
	return nil
}

// runPauseCommand runs runsc pause or resume. It ignores the caller's context, because an abandoned command may still
// take effect, and the state would be unknown.
func (b *instance) runPauseCommand(what string) error {
	ctx, cancel := context.WithTimeout(b.pauser.over, pauseCommandWait)
	defer cancel()
	return b.driver.runsc.do(ctx, b.bundle, what, b.id)
}

const pauseCommandWait = 30 * time.Second

// isPaused returns sandbox.ErrPaused while the sandbox is paused.
func (b *instance) isPaused() error {
	b.pauser.mu.Lock()
	defer b.pauser.mu.Unlock()
	if b.pauser.paused {
		return sandbox.ErrPaused
	}
	return nil
}

// Usage implements sandbox.UsageReporter. It includes gVisor's own use. The number of processes is unknown to
// the host.
func (b *instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return sandbox.Usage{}, err
	}
	defer leave()
	if b.pauser.paused {
		return sandbox.Usage{}, sandbox.ErrPaused
	}
	u := b.group.Usage()
	u.Processes = -1
	if u.Disk, err = b.DiskUsed(ctx); err != nil {
		return sandbox.Usage{}, err
	}
	return u, nil
}
