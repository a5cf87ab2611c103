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

// goOn lets the machine run. QEMU tells that all memory is kept a moment before
// it would let a machine run that was stopped for it.
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
	holds  bool // the template it goes on from

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
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, fmt.Errorf("keep a sandbox: %w", err)
	}
	b.driver.keepSnapshot(s)
	return s, nil
}

// take keeps the machine, which is stopped, as it is.
func (b *box) take(ctx context.Context) (_ *snapshot, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreWait)
	defer cancel()
	s := &snapshot{
		driver: b.driver, limits: b.asked.Limits, env: slices.Clone(b.asked.Env), strict: b.strict, look: b.asked.Look, image: frozen{build: b.build},
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := b.keep(ctx, &s.image); err != nil {
		return nil, err
	}
	s.size, err = s.measure()
	return s, err
}

// keep fills in what the machine is, devices and memory. Where it began with the
// memory of a template it is only what it changed, unless this process may not
// see that.
func (b *box) keep(ctx context.Context, f *frozen) (err error) {
	m := b.machine
	if m.own {
		if f.state, err = m.orders.save(ctx); err != nil {
			return err
		}
		runs, err := filled(m.memory)
		if err != nil {
			return err
		}
		return b.keepPages(f, m.memory, runs)
	}
	v, err := m.look()
	if errors.Is(err, fs.ErrPermission) {
		b.driver.log.Info("all of a machine's memory is kept, since what it changed cannot be seen", "error", err)
		if f.state, err = b.driver.guests.Unnamed(); err != nil {
			return err
		}
		return m.orders.send(ctx, f.state)
	}
	if err != nil {
		return err
	}
	defer v.close()
	if f.state, err = m.orders.save(ctx); err != nil {
		return err
	}
	runs, err := v.changed() // after QEMU has done what it had to
	if err != nil {
		return err
	}
	f.of = b.of
	if f.base, err = another(m.memory); err != nil {
		return err
	}
	return b.keepPages(f, v, runs)
}

func (b *box) keepPages(f *frozen, memory io.ReaderAt, runs []run) error {
	file, err := b.driver.guests.Unnamed()
	if err != nil {
		return err
	}
	if f.changed, err = copyOut(memory, runs, file); err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

// measure tells how much it takes, and holds the template it goes on from. Where
// that is not kept any more, its memory is there for this alone, and counts.
func (s *snapshot) measure() (bytes int64, err error) {
	files := []*os.File{s.image.state}
	if s.image.changed != nil {
		files = append(files, s.image.changed.file)
	}
	if s.image.base != nil {
		if s.holds = s.driver.hold(s.image.of); !s.holds {
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
	if s.holds {
		s.driver.letGo(s.image.of)
	}
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
