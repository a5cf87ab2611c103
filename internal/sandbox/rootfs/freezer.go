//go:build linux

package rootfs

import (
	"context"
	"errors"
	"sync"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/cgroup"
)

// Freezer pauses and resumes a sandbox whose processes are in one control group, and measures what they use.
// It implements Pausable and UsageReporter for the driver. The caller must call End before the group is
// removed.
type Freezer struct {
	client *agentclient.Client
	group  *cgroup.Group
	// over is cancelled by End and ends calls that have a context of their own, so it must be a field.
	over context.Context
	end  context.CancelFunc

	mu     sync.Mutex // held during Pause and Resume, which may take seconds
	paused bool
}

// NewFreezer returns a Freezer for a running sandbox.
func NewFreezer(l *agentclient.Client, g *cgroup.Group) *Freezer {
	s := &Freezer{client: l, group: g}
	s.over, s.end = context.WithCancel(context.Background())
	return s
}

// Pause freezes the control group.
func (s *Freezer) Pause(ctx context.Context) error {
	ctx, done := s.within(ctx)
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.gone(); err != nil || s.paused {
		return err
	}
	s.client.Suspend()
	if err := s.group.Freeze(ctx); err != nil {
		s.client.Continue()
		return err
	}
	s.paused = true
	return nil
}

// Resume thaws the control group.
func (s *Freezer) Resume(ctx context.Context) error {
	ctx, done := s.within(ctx)
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.gone(); err != nil || !s.paused {
		return err
	}
	if err := s.group.Thaw(ctx); err != nil {
		return err
	}
	s.paused = false
	s.client.Continue()
	return nil
}

// Usage returns the counters of the group, and the agent's answer for the disk.
func (s *Freezer) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := s.gone(); err != nil {
		return sandbox.Usage{}, err
	}
	disk, err := s.client.DiskUsed(ctx)
	switch {
	case errors.Is(err, sandbox.ErrPaused), errors.Is(err, sandbox.ErrClosed), ctx.Err() != nil:
		return sandbox.Usage{}, err
	case err != nil: // the agent has too many requests in progress
		disk = -1
	}
	u := s.group.Usage()
	u.Disk = disk
	return u, nil
}

// Assign gives the processes the part of the processors that a principal has.
func (s *Freezer) Assign(principal string) error {
	if err := s.gone(); err != nil {
		return err
	}
	return s.group.Assign(principal)
}

// Paused returns sandbox.ErrPaused while the sandbox is paused.
func (s *Freezer) Paused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		return sandbox.ErrPaused
	}
	return nil
}

// End thaws the group, so that its processes can end. Later calls of Pause fail.
func (s *Freezer) End() {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		// Thaw has a deadline of its own; it fails if the processes were killed already.
		s.group.Thaw(context.Background())
	}
}

// within returns a context that ends with ctx or with End.
func (s *Freezer) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.over, func() { cancel(sandbox.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func (s *Freezer) gone() error {
	select {
	case <-s.over.Done():
		return sandbox.ErrClosed
	case <-s.client.Done():
		return sandbox.ErrClosed
	default:
		return nil
	}
}
