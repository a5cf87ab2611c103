//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// orderWait is for an order that is not to be given up halfway, such as that a
// machine stops, whoever waits for it.
const orderWait = 30 * time.Second

// Pause is that of sandbox.Pausable.
func (b *box) Pause(ctx context.Context) error {
	b.asked.Lock()
	defer b.asked.Unlock()
	if err := b.alive(); err != nil || b.paused {
		return err
	}
	if err := b.stop(ctx); err != nil {
		return err
	}
	b.paused = true
	return nil
}

// alive is an error once it is being closed.
func (b *box) alive() error {
	select {
	case <-b.ending:
		return sandbox.ErrClosed
	case <-b.Link.Done():
		return sandbox.ErrClosed
	default:
		return nil
	}
}

// stop has the agent say nothing, and then stops the machine. The caller has
// it locked.
func (b *box) stop(ctx context.Context) error {
	if err := b.Link.Still(ctx); err != nil {
		return err
	}
	if err := b.order(ctx, "stop"); err != nil {
		b.Link.Let()
		return err
	}
	return nil
}

func (b *box) order(ctx context.Context, what string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orderWait)
	defer cancel()
	return b.machine.orders.order(ctx, what, nil)
}

// Resume is that of sandbox.Pausable.
func (b *box) Resume(ctx context.Context) error {
	b.asked.Lock()
	defer b.asked.Unlock()
	if err := b.alive(); err != nil || !b.paused {
		return err
	}
	if err := b.goOn(ctx); err != nil {
		return err
	}
	b.paused = false
	return nil
}

// goOn lets the machine run. QEMU tells that memory is kept a moment before it
// would let a machine run that was stopped for it.
func (b *box) goOn(ctx context.Context) error {
	err := b.order(ctx, "cont")
	for end := time.Now().Add(orderWait); unfinished(err) && time.Now().Before(end); err = b.order(ctx, "cont") {
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	b.Link.Let()
	return nil
}

func unfinished(err error) bool {
	e, ok := errors.AsType[*orderError](err)
	return ok && strings.Contains(e.Desc, "not finalized")
}

// snapshot is a sandbox at one moment, with all of its memory.
type snapshot struct {
	driver *Driver
	limits sandbox.Limits
	env    []string
	strict bool
	look   []string
	size   int64

	mu     sync.RWMutex
	image  frozen
	closed bool
}

// Snapshot is that of sandbox.Snapshotter.
func (b *box) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	b.asked.Lock()
	defer b.asked.Unlock()
	if err := b.alive(); err != nil {
		return nil, err
	}
	if !b.paused {
		if err := b.stop(ctx); err != nil {
			return nil, err
		}
	}
	s, err := b.take(ctx)
	if !b.paused {
		err = errors.Join(err, b.goOn(ctx))
	}
	if err != nil && s != nil {
		s.Close()
	}
	if err != nil {
		return nil, err
	}
	b.driver.keepSnapshot(s)
	return s, nil
}

func (b *box) take(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreWait)
	defer cancel()
	file, err := b.driver.guests.Unnamed()
	if err != nil {
		return nil, err
	}
	if err := b.machine.orders.move(ctx, "migrate", file, false); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &snapshot{
		driver: b.driver, limits: b.asked.Limits, env: slices.Clone(b.asked.Env), strict: b.strict, look: b.asked.Look, size: info.Size(),
		image: frozen{build: b.build, state: file},
	}, nil
}

// Size is how many bytes it takes.
func (s *snapshot) Size() int64 { return s.size }

// Create makes a sandbox that goes on from there.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errors.New("the snapshot was thrown away")
	}
	b := s.driver.newBox(s.limits, s.look, s.env, s.strict)
	if err := s.driver.warm(ctx, b, s.image); err != nil {
		return nil, fmt.Errorf("create a sandbox of a snapshot: %w", err)
	}
	return b, nil
}

// Close throws it away.
func (s *snapshot) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.driver.forgetSnapshot(s)
	return s.image.close()
}

// keepSnapshot has it end with the driver.
func (d *Driver) keepSnapshot(s *snapshot) {
	d.mu.Lock()
	closed := d.templates == nil
	if !closed {
		d.snapshots[s] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		s.Close()
	}
}

func (d *Driver) forgetSnapshot(s *snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, s)
}
