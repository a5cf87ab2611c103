//go:build amd64 || arm64

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
)

// recoverWait is how long a machine may take to resume after an error, even if the caller has given up.
const recoverWait = time.Minute

// Pause implements sandbox.Pausable. The agent is quiesced before the machine stops, so that no frame is in
// flight that a snapshot would lose.
func (b *instance) Pause(ctx context.Context) error {
	b.settings.Lock()
	defer b.settings.Unlock()
	if b.paused {
		return nil
	}
	if err := b.Quiesce(ctx); err != nil {
		return err
	}
	if err := b.machine.pause(ctx, false); err != nil {
		return errors.Join(err, b.recover(ctx))
	}
	b.paused = true
	return nil
}

// Resume implements sandbox.Pausable.
func (b *instance) Resume(ctx context.Context) error {
	b.settings.Lock()
	defer b.settings.Unlock()
	if !b.paused {
		return nil
	}
	if err := b.resumeMachine(ctx); err != nil {
		return err
	}
	b.paused = false
	return nil
}

// resumeMachine resumes the machine and the client, over another channel if the old one was lost. The caller has locked
// the settings.
func (b *instance) resumeMachine(ctx context.Context) error {
	if err := b.machine.resume(ctx); err != nil {
		return err
	}
	if b.reset {
		conn, err := b.machine.agent(ctx)
		if err == nil {
			err = b.Switch(conn)
		}
		if err != nil {
			return err
		}
		b.reset = false
	}
	b.Continue()
	return nil
}

// recover resumes the machine even if the caller has given up. The caller has locked the settings.
func (b *instance) recover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoverWait)
	defer cancel()
	err := b.resumeMachine(ctx)
	if err != nil {
		b.machine.process.p.Kill() // the agent cannot be reached any more
	}
	return err
}

// Snapshot implements sandbox.Snapshotter.
func (b *instance) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	b.settings.Lock()
	defer b.settings.Unlock()
	select {
	case <-b.gone:
		return nil, sandbox.ErrClosed
	default:
	}
	if !b.paused {
		if err := b.Quiesce(ctx); err != nil {
			return nil, err
		}
		b.reset = true
		if err := b.machine.pause(ctx, true); err != nil {
			return nil, errors.Join(err, b.recover(ctx))
		}
	}
	b.reset = true // even if it fails
	s, err := b.takeSnapshot(ctx)
	if !b.paused {
		err = errors.Join(err, b.recover(ctx))
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	return s, nil
}

// snapshot is the saved state of a machine: its memory, which is immutable, its devices, and the disks it
// uses.
type snapshot struct {
	driver   *Driver
	dir      string
	files    map[string]string // by name in the jail of a restored machine
	bytes    int64
	size     size
	limits   sandbox.Limits
	env      []string
	imageEnv []string
	once     sync.Once
}

// takeSnapshot writes the state of the machine. The caller has locked the settings.
func (b *instance) takeSnapshot(ctx context.Context) (_ *snapshot, err error) {
	dir, err := os.MkdirTemp(b.driver.snapshotFolder(), "")
	if err != nil {
		return nil, err
	}
	b.driver.store.hold(b.size.disks)
	s := &snapshot{
		driver:   b.driver,
		dir:      dir,
		files:    map[string]string{},
		size:     b.size,
		limits:   b.settings.Limits,
		env:      b.settings.Env,
		imageEnv: b.settings.ImageEnv,
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := b.machine.saveSnapshot(ctx); err != nil {
		return nil, err
	}
	for name, later := range map[string]string{stateFile: wasState, memoryFile: wasMemory} {
		s.files[later] = filepath.Join(dir, name)
		if err := b.jail.moveOut(name, s.files[later]); err != nil {
			return nil, err
		}
	}
	s.bytes, err = space(s.files[wasState], s.files[wasMemory])
	return s, err
}

// space returns how many bytes files occupy on disk.
func space(paths ...string) (bytes int64, err error) {
	for _, path := range paths {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return 0, &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		bytes += st.Blocks * 512
	}
	return bytes, nil
}

// Size implements sandbox.Snapshot.
func (s *snapshot) Size() int64 { return s.bytes }

// Close deletes the snapshot. Machines restored from it have links to its files.
func (s *snapshot) Close() error {
	s.once.Do(func() { s.driver.store.releaseFiles(s.size.disks) })
	return os.RemoveAll(s.dir)
}

// Create makes a sandbox that continues from the snapshot. Firecracker's documentation calls restoring a
// snapshot more than once insecure because machines would share their randomness: here the kernel is informed
// by its VM generation id, which Firecracker changes, and the agent by Renew.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.driver.store.hold(s.size.disks)
	b, conn, err := s.driver.startInstance(ctx, s.size, s.files, s.size.disks, func(m *machine) error {
		return m.load(ctx)
	})
	if err == nil {
		b.settings.Limits, b.settings.ImageEnv, b.settings.Env = s.limits, s.imageEnv, s.env
		b, err = b.activate(conn, func() error { return b.renew(ctx) })
	}
	if err != nil {
		return nil, fmt.Errorf("create a sandbox from a snapshot: %w", withRemedy(err))
	}
	return b, nil
}

// renew makes the restored agent that of this sandbox. Network access belonged to the old one.
func (b *instance) renew(ctx context.Context) error {
	if err := b.Renew(ctx); err != nil {
		return err
	}
	return b.Client.Adjust(ctx, b.settings.Plan(), b.settings.Limits)
}
