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

// snapshottable is a sandbox that supports snapshots, which requires root.
type snapshottable struct{ *instance }

// Snapshot implements sandbox.Snapshotter.
func (k snapshottable) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	s, err := k.takeSnapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	return s, nil
}

// snapshot is the saved state of a kernel in a folder.
type snapshot struct {
	driver    *Driver
	folder    string
	size      int64
	root      *root
	limits    sandbox.Limits
	env       []string
	networked bool // its programs have the environment for the egress proxy

	closed func() error
	mu     sync.RWMutex // guards the existence of the folder: Create reads it, Close removes it
	gone   bool
}

func (b *instance) takeSnapshot(ctx context.Context) (_ *snapshot, err error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !b.pauser.paused {
		if err := b.Client.Quiesce(ctx); err != nil {
			return nil, err
		}
		defer b.Continue()
	}
	b.settings.Lock()
	s := &snapshot{
		driver:    b.driver,
		root:      b.root,
		limits:    b.settings.Limits,
		env:       b.settings.Env,
		networked: b.settings.Port != 0,
	}
	b.settings.Unlock()
	if s.folder, err = os.MkdirTemp(b.driver.folder, "snapshot-"); err != nil {
		return nil, err
	}
	s.closed = sync.OnceValue(s.removeSnapshot)
	b.root.acquire()
	if err := b.driver.runsc.do(ctx, b.bundle, "checkpoint", "--leave-running", "--compression=none",
		"--image-path", s.folder, b.id); err != nil {
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

// Size implements sandbox.Snapshot.
func (s *snapshot) Size() int64 { return s.size }

// Close deletes the snapshot.
func (s *snapshot) Close() error { return s.closed() }

func (s *snapshot) removeSnapshot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(os.RemoveAll(s.folder), s.root.releaseRoot())
}

// Create makes a sandbox that continues from the snapshot.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return nil, errors.New("the snapshot is closed; take another one")
	}
	if !s.root.acquire() {
		return nil, sandbox.ErrDriverClosed
	}
	b := s.driver.newInstance(s.root, s.limits, slices.Clone(s.env))
	if err := b.startWith(s.driver.runsc.restore(b.id, b.bundle, s.folder), func() error {
		return b.renewAgent(ctx, s.networked)
	}); err != nil {
		return nil, fmt.Errorf("create a sandbox from a snapshot: %w", err)
	}
	return s.driver.offer(b), nil
}

// renewAgent makes a restored agent that of this sandbox.
func (b *instance) renewAgent(ctx context.Context, inside bool) error {
	if err := b.Renew(ctx); err != nil || !inside {
		return err
	}
	return b.Client.Adjust(ctx, b.settings.Plan(), b.settings.Limits)
}

var _ sandbox.Snapshotter = snapshottable{}
