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

// recovering is how long a machine may take to go on after something failed,
// whatever became of the caller.
const recovering = time.Minute

// Pause is that of sandbox.Pausable. The agent is silent before the machine
// stops, so that nothing is on its way that a snapshot would lose.
func (b *box) Pause(ctx context.Context) error {
	b.asked.Lock()
	defer b.asked.Unlock()
	if b.paused {
		return nil
	}
	if err := b.Still(ctx); err != nil {
		return err
	}
	if err := b.machine.pause(ctx, false); err != nil {
		return errors.Join(err, b.recover(ctx))
	}
	b.paused = true
	return nil
}

// Resume is that of sandbox.Pausable.
func (b *box) Resume(ctx context.Context) error {
	b.asked.Lock()
	defer b.asked.Unlock()
	if !b.paused {
		return nil
	}
	if err := b.goOn(ctx); err != nil {
		return err
	}
	b.paused = false
	return nil
}

// goOn lets the machine go on, and the link with it, by another channel where
// the one before was lost. The caller has it locked.
func (b *box) goOn(ctx context.Context) error {
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
	b.Let()
	return nil
}

// recover lets it go on whatever became of the caller. The caller has it locked.
func (b *box) recover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recovering)
	defer cancel()
	err := b.goOn(ctx)
	if err != nil {
		b.machine.process.p.Kill() // nobody can reach what is in it any more
	}
	return err
}

// Snapshot is that of sandbox.Snapshotter.
func (b *box) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	b.asked.Lock()
	defer b.asked.Unlock()
	select {
	case <-b.gone:
		return nil, sandbox.ErrClosed
	default:
	}
	if !b.paused {
		if err := b.Still(ctx); err != nil {
			return nil, err
		}
		b.reset = true
		if err := b.machine.pause(ctx, true); err != nil {
			return nil, errors.Join(err, b.recover(ctx))
		}
	}
	b.reset = true // whatever comes of it
	s, err := b.keep(ctx)
	if !b.paused {
		err = errors.Join(err, b.recover(ctx))
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, fmt.Errorf("keep a sandbox: %w", err)
	}
	return s, nil
}

// snapshot is a machine at one moment: its memory, which nobody changes, its
// devices, and the disks it has.
type snapshot struct {
	driver *Driver
	dir    string
	files  map[string]string // by name in the jail of a machine made of it
	bytes  int64
	size   size
	limits sandbox.Limits
	env    []string
	look   []string
	once   sync.Once
}

// keep has the machine written down. The caller has it locked.
func (b *box) keep(ctx context.Context) (_ *snapshot, err error) {
	dir, err := os.MkdirTemp(b.driver.kept(), "")
	if err != nil {
		return nil, err
	}
	b.driver.shelf.hold(b.size.disks)
	s := &snapshot{driver: b.driver, dir: dir, files: map[string]string{}, size: b.size, limits: b.asked.Limits, env: b.asked.Env, look: b.asked.Look}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := b.machine.keep(ctx); err != nil {
		return nil, err
	}
	for name, later := range map[string]string{stateFile: wasState, memoryFile: wasMemory} {
		s.files[later] = filepath.Join(dir, name)
		if err := b.jail.take(name, s.files[later]); err != nil {
			return nil, err
		}
	}
	s.bytes, err = space(s.files[wasState], s.files[wasMemory])
	return s, err
}

// space is how much files take on disk.
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

// Size is how many bytes it takes on disk.
func (s *snapshot) Size() int64 { return s.bytes }

// Close throws it away. Machines made of it have its files, too.
func (s *snapshot) Close() error {
	s.once.Do(func() { s.driver.shelf.give(s.size.disks) })
	return os.RemoveAll(s.dir)
}

// Create makes a sandbox that goes on from that moment. What Firecracker calls
// insecure, to go on from one moment more than once, is so because machines
// would share their randomness: the kernel of the new one is told by its
// generation's identity, which Firecracker changes, and the agent by Renew.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.driver.shelf.hold(s.size.disks)
	b, conn, err := s.driver.raise(ctx, s.size, s.files, s.size.disks, func(m *machine) error { return m.load(ctx) })
	if err == nil {
		b.asked.Limits, b.asked.Look, b.asked.Env = s.limits, s.look, s.env
		b, err = b.live(conn, func() error { return b.renew(ctx) })
	}
	if err != nil {
		return nil, fmt.Errorf("create a sandbox of a snapshot: %w", remedied(err))
	}
	return b, nil
}

// renew makes it another sandbox than it was. The way out was the old one's.
func (b *box) renew(ctx context.Context) error {
	if err := b.Renew(ctx); err != nil {
		return err
	}
	return b.Link.Adjust(ctx, b.asked.Plan(), b.asked.Limits)
}
