//go:build amd64 || arm64

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"gatehouse/internal/sandbox"
)

// keepable is a sandbox that can be kept, which only root's runsc does.
type keepable struct{ *box }

// Snapshot is that of sandbox.Snapshotter.
func (k keepable) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	s, err := k.keep(ctx)
	if err != nil {
		return nil, fmt.Errorf("keep a sandbox: %w", err)
	}
	return s, nil
}

// snapshot is the memory of a kernel with all that is in it, in a folder.
type snapshot struct {
	driver *Driver
	folder string
	size   int64
	root   *root
	limits sandbox.Limits
	env    []string
	inside bool // the programs in it were told of a way out

	closed func() error
	mu     sync.RWMutex // of the folder being there
	gone   bool
}

func (b *box) keep(ctx context.Context) (_ *snapshot, err error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !b.still.paused {
		if err := b.Link.Still(ctx); err != nil {
			return nil, err
		}
		defer b.Let()
	}
	b.asked.Lock()
	s := &snapshot{driver: b.driver, root: b.root, limits: b.asked.Limits, env: b.asked.Env, inside: b.asked.Port != 0}
	b.asked.Unlock()
	if s.folder, err = os.MkdirTemp(b.driver.folder, "snapshot-"); err != nil {
		return nil, err
	}
	s.closed = sync.OnceValue(s.remove)
	b.root.join()
	if err := b.driver.runsc.do(ctx, b.bundle, "checkpoint", "--leave-running", "--compression=none", "--image-path", s.folder, b.id); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.size, err = sizeOf(s.folder); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func sizeOf(folder string) (total int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

// Size is what it takes on disk.
func (s *snapshot) Size() int64 { return s.size }

// Close throws it away.
func (s *snapshot) Close() error { return s.closed() }

func (s *snapshot) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(os.RemoveAll(s.folder), s.root.leave())
}

// Create makes a sandbox that goes on from there.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return nil, errors.New("the snapshot is gone; take another one")
	}
	if !s.root.join() {
		return nil, sandbox.ErrDriverClosed
	}
	b := s.driver.newBox(s.root, s.limits, slices.Clone(s.env))
	if err := b.begin(s.driver.runsc.restore(b.id, b.bundle, s.folder), func() error { return b.wake(ctx, s.inside) }); err != nil {
		return nil, fmt.Errorf("create a sandbox of a snapshot: %w", err)
	}
	return s.driver.offer(b), nil
}

// wake has an agent that was kept be this sandbox's.
func (b *box) wake(ctx context.Context, inside bool) error {
	if err := b.Renew(ctx); err != nil || !inside {
		return err
	}
	return b.Link.Adjust(ctx, b.asked.Plan(), b.asked.Limits)
}

var _ sandbox.Snapshotter = keepable{}
