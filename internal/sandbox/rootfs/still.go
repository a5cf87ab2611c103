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

// Still makes a sandbox whose processes are in one control group stand still
// and go on, and tells what they use: the Pausable and the Measured of its
// driver. Whoever makes it calls End before the group is removed.
type Still struct {
	link  *agentclient.Link
	group *cgroup.Group
	// over ends with the sandbox, which may be in the middle of a pause.
	over context.Context
	end  context.CancelFunc

	mu     sync.Mutex // held while it stops and goes on
	paused bool
}

// NewStill is for a sandbox that runs.
func NewStill(l *agentclient.Link, g *cgroup.Group) *Still {
	s := &Still{link: l, group: g}
	s.over, s.end = context.WithCancel(context.Background())
	return s
}

// Pause stops every process in the group.
func (s *Still) Pause(ctx context.Context) error {
	ctx, done := s.within(ctx)
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.gone(); err != nil || s.paused {
		return err
	}
	s.link.Hold()
	if err := s.group.Freeze(ctx); err != nil {
		s.link.Let()
		return err
	}
	s.paused = true
	return nil
}

// Resume lets them go on.
func (s *Still) Resume(ctx context.Context) error {
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
	s.link.Let()
	return nil
}

// Usage is what the group counts, and what the agent says of the disk.
func (s *Still) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := s.gone(); err != nil {
		return sandbox.Usage{}, err
	}
	disk, err := s.link.DiskUsed(ctx)
	switch {
	case errors.Is(err, sandbox.ErrPaused), errors.Is(err, sandbox.ErrClosed), ctx.Err() != nil:
		return sandbox.Usage{}, err
	case err != nil: // the agent has too much else to do
		disk = -1
	}
	u := s.group.Usage()
	u.Disk = disk
	return u, nil
}

// Paused is sandbox.ErrPaused while it is.
func (s *Still) Paused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		return sandbox.ErrPaused
	}
	return nil
}

// End lets go of what stands still, so that it can end, and stops nothing from
// here on.
func (s *Still) End() {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		s.group.Thaw(context.Background()) // which has a deadline of its own; what was killed may be gone already
	}
}

// within is ctx, ended by End too.
func (s *Still) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.over, func() { cancel(sandbox.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func (s *Still) gone() error {
	select {
	case <-s.over.Done():
		return sandbox.ErrClosed
	case <-s.link.Done():
		return sandbox.ErrClosed
	default:
		return nil
	}
}
