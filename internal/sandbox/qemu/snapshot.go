//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// commandWait bounds commands that must not be abandoned halfway, such as pausing, even if the caller gives up.
const commandWait = 30 * time.Second

// Pause implements sandbox.Pausable.
func (b *instance) Pause(ctx context.Context) error {
	b.settings.Lock()
	defer b.settings.Unlock()
	if err := b.alive(); err != nil || b.paused {
		return err
	}
	if err := b.pauseMachine(ctx); err != nil {
		return err
	}
	b.paused = true
	return nil
}

// alive returns an error once the sandbox is being closed.
func (b *instance) alive() error {
	select {
	case <-b.ending:
		return sandbox.ErrClosed
	case <-b.Client.Done():
		return sandbox.ErrClosed
	default:
		return nil
	}
}

// pauseMachine quiesces the agent and then pauses the machine. The caller has locked the settings.
func (b *instance) pauseMachine(ctx context.Context) error {
	if err := b.Client.Quiesce(ctx); err != nil {
		return err
	}
	if err := b.runCommand(ctx, "stop"); err != nil {
		b.Client.Continue()
		return err
	}
	return nil
}

func (b *instance) runCommand(ctx context.Context, what string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandWait)
	defer cancel()
	return b.machine.monitor.command(ctx, what, nil)
}

// Resume implements sandbox.Pausable.
func (b *instance) Resume(ctx context.Context) error {
	b.settings.Lock()
	defer b.settings.Unlock()
	if err := b.alive(); err != nil || !b.paused {
		return err
	}
	if err := b.resumeMachine(ctx); err != nil {
		return err
	}
	b.paused = false
	return nil
}

// resumeMachine resumes the machine. After a snapshot QEMU reports completion slightly before it accepts cont, so goOn
// retries.
func (b *instance) resumeMachine(ctx context.Context) error {
	err := b.runCommand(ctx, "cont")
	for end := time.Now().Add(commandWait); unfinished(err) && time.Now().Before(end); err = b.runCommand(ctx, "cont") {
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	b.Client.Continue()
	return nil
}

func unfinished(err error) bool {
	e, ok := errors.AsType[*commandError](err)
	return ok && strings.Contains(e.Desc, "not finalized")
}

// snapshot is the state of a sandbox with all of its memory.
type snapshot struct {
	driver        *Driver
	limits        sandbox.Limits
	env           []string
	strict        bool
	imageEnv      []string
	size          int64
	holdsTemplate bool // it holds the template on which it is based

	mu     sync.RWMutex
	image  savedState
	closed bool
}

// Snapshot implements sandbox.Snapshotter.
func (b *instance) Snapshot(ctx context.Context) (sandbox.Snapshot, error) {
	b.settings.Lock()
	defer b.settings.Unlock()
	if err := b.alive(); err != nil {
		return nil, err
	}
	if !b.paused {
		if err := b.pauseMachine(ctx); err != nil {
			return nil, err
		}
	}
	s, err := b.takeSnapshot(ctx)
	if !b.paused {
		err = errors.Join(err, b.resumeMachine(ctx))
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	b.driver.keepSnapshot(s)
	return s, nil
}

// takeSnapshot saves the state of the machine, which is paused.
func (b *instance) takeSnapshot(ctx context.Context) (_ *snapshot, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreWait)
	defer cancel()
	s := &snapshot{
		driver:   b.driver,
		limits:   b.settings.Limits,
		env:      slices.Clone(b.settings.Env),
		strict:   b.strict,
		imageEnv: b.settings.ImageEnv,
		image:    savedState{build: b.build},
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := b.saveState(ctx, &s.image); err != nil {
		return nil, err
	}
	s.size, err = s.measure()
	return s, err
}

// saveState saves the devices and the memory of the machine. If the machine started from a template, only the
// changed pages are saved, unless this process may not read them.
func (b *instance) saveState(ctx context.Context, f *savedState) (err error) {
	m := b.machine
	if m.ownMemory {
		if f.state, err = m.monitor.saveDevices(ctx); err != nil {
			return err
		}
		runs, err := filled(m.memory)
		if err != nil {
			return err
		}
		return b.savePages(f, m.memory, runs)
	}
	v, err := m.openView()
	if errors.Is(err, fs.ErrPermission) {
		b.driver.log.Info("all of a machine's memory is saved, because its changes cannot be read", "error", err)
		if f.state, err = b.driver.guests.Unnamed(); err != nil {
			return err
		}
		return m.monitor.saveAll(ctx, f.state)
	}
	if err != nil {
		return err
	}
	defer v.closeView()
	if f.state, err = m.monitor.saveDevices(ctx); err != nil {
		return err
	}
	runs, err := v.changed() // after QEMU's own writes to the memory
	if err != nil {
		return err
	}
	f.template = b.template
	if f.base, err = duplicate(m.memory); err != nil {
		return err
	}
	return b.savePages(f, v, runs)
}

func (b *instance) savePages(f *savedState, memory io.ReaderAt, runs []run) error {
	file, err := b.driver.guests.Unnamed()
	if err != nil {
		return err
	}
	if f.changed, err = copyOut(memory, runs, file); err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

// measure returns the bytes on disk, and holds the template on which the snapshot is based. If the template
// has been closed, its memory exists for this snapshot alone and counts too.
func (s *snapshot) measure() (bytes int64, err error) {
	files := []*os.File{s.image.state}
	if s.image.changed != nil {
		files = append(files, s.image.changed.file)
	}
	if s.image.base != nil {
		if s.holdsTemplate = s.driver.holdTemplate(s.image.template); !s.holdsTemplate {
			files = append(files, s.image.base)
		}
	}
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return 0, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
		}
		bytes += st.Blocks * 512
	}
	return bytes, nil
}

// Size implements sandbox.Snapshot.
func (s *snapshot) Size() int64 { return s.size }

// Create makes a sandbox that continues from the snapshot.
func (s *snapshot) Create(ctx context.Context) (sandbox.Sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errors.New("the snapshot is closed; take another one")
	}
	b := s.driver.newInstance(s.limits, s.imageEnv, s.env, s.strict)
	if err := s.driver.restoreInstance(ctx, b, s.image); err != nil {
		return nil, fmt.Errorf("create a sandbox from a snapshot: %w", err)
	}
	return b, nil
}

// Close deletes the snapshot.
func (s *snapshot) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.driver.forgetSnapshot(s)
	if s.holdsTemplate {
		s.driver.releaseTemplate(s.image.template)
	}
	return s.image.closeState()
}

// keepSnapshot registers s, so that the driver's Close closes it.
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
