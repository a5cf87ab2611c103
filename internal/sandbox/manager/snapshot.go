package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// Defaults of Options for snapshots.
const (
	DefaultSnapshots     = 20
	DefaultSnapshotBytes = 4 << 30
	DefaultSnapshotLife  = 24 * time.Hour
)

// Kinds of snapshots.
const (
	KeptMemory = "memory" // files and running programs
	KeptFiles  = "files"  // files of the home folder and /tmp
)

// keptFolders are the folders whose files are saved.
var keptFolders = [...]string{"/home/user", "/tmp"}

// Errors of snapshots.
var (
	ErrNoSnapshot    = errors.New("snapshot not found or invalid ID")
	ErrSnapshotsFull = errors.New("no space is left for another snapshot: remove one first")
)

// Snapshot is the saved state of a sandbox, with an owner. It does not outlive the host. It is safe for
// concurrent use.
type Snapshot struct {
	ID, Name  string
	owner     string // guarded by Manager.mu
	Created   time.Time
	ExpiresAt time.Time
	Sandbox   string // id of its sandbox
	Driver    string
	Tier      sandbox.Tier
	Template  string
	Kept      string // KeptMemory or KeptFiles
	Size      int64  // bytes on disk

	kind   *kind
	ask    Spec // with the limits in force
	moment sandbox.Snapshot
	files  []*os.File // an unnamed archive file for each of keptFolders

	using sync.RWMutex // read-locked while it is used, locked to close it
	gone  bool
	timer *time.Timer
}

// Snapshot saves the state of a sandbox. If the driver cannot save memory, only files are saved, as they are
// found while programs run.
func (m *Manager) Snapshot(ctx context.Context, b *Box, name string) (*Snapshot, error) {
	r, err := m.reserveSnapshot(b, true)
	if err != nil {
		return nil, err
	}
	s, err := m.takeSnapshot(ctx, b, r)
	m.mu.Lock()
	m.giveBack(r)
	switch {
	case err != nil:
	case m.closed:
		err = errEnded
	case m.snapshotBytes()+s.Size > m.o.SnapshotBytes:
		err = fmt.Errorf("%w (this one has %d MiB, and %d MiB are left)", ErrSnapshotsFull, s.Size>>20,
			max(m.o.SnapshotBytes-m.snapshotBytes(), 0)>>20)
	default:
		s.ID, s.Name = m.o.NewID("snapshot"), name
		m.snapshots[s.ID] = s
		s.timer = time.AfterFunc(m.o.SnapshotLife, func() { m.RemoveSnapshot(m.snapshotOwner(s), s.ID) })
	}
	m.mu.Unlock()
	if err != nil && s != nil {
		s.closeSnapshot()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// takeSnapshot saves as much of a sandbox as its driver supports. Files are limited by the reservation.
func (m *Manager) takeSnapshot(ctx context.Context, b *Box, r snapshotSpace) (s *Snapshot, err error) {
	now := time.Now()
	s = &Snapshot{
		owner: b.Owner(), Created: now, ExpiresAt: now.Add(m.o.SnapshotLife), Sandbox: b.ID, Driver: b.Driver,
		Tier: b.Tier, Template: b.Template,
		kind: b.kind, ask: b.ask,
	}
	s.ask.Limits, s.ask.Progress = b.Limits(), nil
	s.kind.lease.retain()
	switch keeps := b.Sandbox.(type) {
	case sandbox.Snapshotter:
		s.Kept = KeptMemory
		if s.moment, err = keeps.Snapshot(ctx); err != nil {
			s.moment = nil
			return nil, errors.Join(err, s.closeSnapshot())
		}
		s.Size = s.moment.Size()
		return s, nil
	case sandbox.Archive:
		s.Kept = KeptFiles
		for _, folder := range keptFolders {
			err := s.pack(ctx, keeps, folder, m.o.Folder, r.bytes-s.Size)
			if errors.Is(err, errTooLarge) {
				if err = errors.New("the files exceed the sandbox's limit for files"); !r.whole {
					err = ErrSnapshotsFull
				}
			}
			if err != nil {
				s.closeSnapshot()
				return nil, fmt.Errorf("%s: %w", folder, err)
			}
		}
		return s, nil
	}
	return nil, errors.Join(unsupported(b, "do not support snapshots"), s.closeSnapshot())
}

// pack writes the archive of a folder to an unnamed file, which disappears with this process. The file is in
// the folder at, "" means the folder for temporary files.
func (s *Snapshot) pack(ctx context.Context, from sandbox.Archive, folder, at string, most int64) error {
	if at != "" {
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(at, "gatehouse-snapshot-")
	if err != nil {
		return err
	}
	s.files = append(s.files, f)
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	w := &limited{w: f, left: most}
	err = from.Pack(ctx, folder, w)
	s.Size += most - w.left
	return err
}

var errTooLarge = errors.New("the data exceeds the space left")

// limited accepts at most left bytes.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(b []byte) (int, error) {
	if int64(len(b)) > l.left {
		return 0, errTooLarge
	}
	n, err := l.w.Write(b)
	l.left -= int64(n)
	return n, err
}

// closeSnapshot deletes the snapshot. It waits for sandboxes that are being restored from it.
func (s *Snapshot) closeSnapshot() error {
	s.using.Lock()
	defer s.using.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	defer s.kind.lease.drop()
	if s.timer != nil {
		s.timer.Stop()
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	if s.moment != nil {
		errs = append(errs, s.moment.Close())
	}
	return errors.Join(errs...)
}

// Restore makes a sandbox for its owner from a snapshot. Of a, only the name and the times are used.
func (m *Manager) Restore(ctx context.Context, owner, id string, a Spec) (*Box, error) {
	s, err := m.FindSnapshot(owner, id)
	if err != nil {
		return nil, err
	}
	return m.admit(owner, a, func() (*Box, error) { return m.restore(ctx, s, a) })
}

func (m *Manager) restore(ctx context.Context, s *Snapshot, a Spec) (b *Box, err error) {
	s.using.RLock()
	defer s.using.RUnlock()
	if s.gone {
		return nil, ErrNoSnapshot
	}
	ask := s.ask
	ask.Name, ask.Idle, ask.Lifetime = a.Name, a.Idle, a.Lifetime
	if s.moment == nil {
		return m.unpack(ctx, s, ask)
	}
	memory := fillLimits(fillLimits(ask.Limits, s.kind.Limits), m.o.Limits).MemoryMiB
	if b, err = m.newBox(m.snapshotOwner(s), s.kind, ask, memory); err != nil {
		return nil, err
	}
	b.Snapshot = true
	b.Sandbox, err = s.moment.Create(ctx)
	if err != nil {
		b.Sandbox = nil
		b.abandon()
		return nil, err
	}
	return b, nil
}

// unpack makes a sandbox and unpacks the files into it.
func (m *Manager) unpack(ctx context.Context, s *Snapshot, ask Spec) (*Box, error) {
	b, err := m.makeOf(ctx, m.snapshotOwner(s), ask, s.kind)
	if err != nil {
		return nil, err
	}
	b.Snapshot = true
	into, ok := b.Sandbox.(sandbox.Archive)
	if !ok {
		err = unsupported(b, "do not support restoring files")
	}
	for i, folder := range keptFolders {
		if err != nil {
			break
		}
		err = into.Unpack(ctx, folder, io.NewSectionReader(s.files[i], 0, 1<<62))
	}
	if err != nil {
		b.abandon()
		return nil, err
	}
	return b, nil
}

// Fork makes another sandbox that continues from the current state of one. kept returns what it contains. The
// sandbox is counted and the space reserved before anything is written.
func (m *Manager) Fork(ctx context.Context, b *Box, a Spec) (fork *Box, kept string, err error) {
	fork, err = m.admit(b.Owner(), a, func() (*Box, error) {
		r, err := m.reserveSnapshot(b, false)
		if err != nil {
			return nil, err
		}
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.giveBack(r)
		}()
		s, err := m.takeSnapshot(ctx, b, r)
		if err != nil {
			return nil, err
		}
		defer func() {
			if err := s.closeSnapshot(); err != nil {
				m.o.Log.Warn("a snapshot was not removed completely", "error", err)
			}
		}()
		m.mu.Lock()
		m.resize(&r, s.Size)
		m.mu.Unlock()
		kept = s.Kept
		return m.restore(ctx, s, a)
	})
	return fork, kept, err
}

// FindSnapshot returns an owner's snapshot, or ErrNoSnapshot.
func (m *Manager) FindSnapshot(owner, id string) (*Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.snapshots[id]; s != nil && s.owner == owner {
		return s, nil
	}
	return nil, ErrNoSnapshot
}

// snapshotOwner returns the current owner of a snapshot.
func (m *Manager) snapshotOwner(s *Snapshot) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.owner
}

// Snapshots returns an owner's snapshots, the oldest first.
func (m *Manager) Snapshots(owner string) (all []*Snapshot) {
	m.mu.Lock()
	for _, s := range m.snapshots {
		if s.owner == owner {
			all = append(all, s)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *Snapshot) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	return all
}

// RemoveSnapshot deletes an owner's snapshot; sandboxes restored from it live on.
func (m *Manager) RemoveSnapshot(owner, id string) error {
	m.mu.Lock()
	s := m.snapshots[id]
	if s == nil || s.owner != owner {
		m.mu.Unlock()
		return ErrNoSnapshot
	}
	delete(m.snapshots, id)
	m.mu.Unlock()
	return s.closeSnapshot()
}

// closeSnapshots deletes all snapshots.
func (m *Manager) closeSnapshots() error {
	m.mu.Lock()
	all := m.snapshots
	m.snapshots = map[string]*Snapshot{}
	m.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.closeSnapshot())
	}
	return errors.Join(errs...)
}
