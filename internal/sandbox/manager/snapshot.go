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

// What is kept of a sandbox.
const (
	KeptMemory = "memory" // its files and what runs in it
	KeptFiles  = "files"  // what is in its home folder and in /tmp
)

// keptFolders are those whose files are kept.
var keptFolders = [...]string{"/home/user", "/tmp"}

// Errors of snapshots.
var (
	ErrNoSnapshot    = errors.New("snapshot not found or invalid ID")
	ErrSnapshotsFull = errors.New("there is no room for another snapshot: remove one first")
)

// Snapshot is a sandbox as it was at a moment, with an owner. It is gone when
// the host ends. It is safe for concurrent use.
type Snapshot struct {
	ID, Name  string
	owner     string // Manager.mu guards it
	Created   time.Time
	ExpiresAt time.Time
	Sandbox   string // the one it was made of
	Driver    string
	Tier      sandbox.Tier
	Template  string
	Kept      string // KeptMemory or KeptFiles
	Size      int64  // bytes on disk

	kind   *kind
	ask    Ask // with the limits that held
	moment sandbox.Snapshot
	files  []*os.File // an archive of each of keptFolders, of which no name is left

	using sync.RWMutex // held to read while it is used, and to close it
	gone  bool
	timer *time.Timer
}

// Snapshot keeps a sandbox of the owner's as it is. Files alone are kept where
// the driver keeps no memory, and then as they are found while programs run.
func (m *Manager) Snapshot(ctx context.Context, b *Box, name string) (*Snapshot, error) {
	r, err := m.reserveSnapshot(b, true)
	if err != nil {
		return nil, err
	}
	s, err := m.take(ctx, b, r)
	m.mu.Lock()
	m.giveBack(r)
	switch {
	case err != nil:
	case m.closed:
		err = errEnded
	case m.snapshotBytes()+s.Size > m.o.SnapshotBytes:
		err = fmt.Errorf("%w (this one has %d MiB, and there is room for %d)", ErrSnapshotsFull, s.Size>>20, max(m.o.SnapshotBytes-m.snapshotBytes(), 0)>>20)
	default:
		s.ID, s.Name = m.o.NewID("snapshot"), name
		m.snapshots[s.ID] = s
		s.timer = time.AfterFunc(m.o.SnapshotLife, func() { m.RemoveSnapshot(m.snapshotOwner(s), s.ID) })
	}
	m.mu.Unlock()
	if err != nil && s != nil {
		s.close()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// take keeps a sandbox as well as its driver can. Files take no more than the
// room there is for them.
func (m *Manager) take(ctx context.Context, b *Box, r room) (s *Snapshot, err error) {
	now := time.Now()
	s = &Snapshot{
		owner: b.Owner(), Created: now, ExpiresAt: now.Add(m.o.SnapshotLife), Sandbox: b.ID, Driver: b.Driver, Tier: b.Tier, Template: b.Template,
		kind: b.kind, ask: b.ask,
	}
	s.ask.Limits, s.ask.Progress = b.Limits(), nil
	s.kind.lease.add()
	switch keeps := b.Sandbox.(type) {
	case sandbox.Snapshotter:
		s.Kept = KeptMemory
		if s.moment, err = keeps.Snapshot(ctx); err != nil {
			s.moment = nil
			return nil, errors.Join(err, s.close())
		}
		s.Size = s.moment.Size()
		return s, nil
	case sandbox.Archive:
		s.Kept = KeptFiles
		for _, folder := range keptFolders {
			err := s.pack(ctx, keeps, folder, m.o.Folder, r.bytes-s.Size)
			if errors.Is(err, errTooLarge) {
				if err = errors.New("its files are more than its limit for files allows"); !r.whole {
					err = ErrSnapshotsFull
				}
			}
			if err != nil {
				s.close()
				return nil, fmt.Errorf("%s: %w", folder, err)
			}
		}
		return s, nil
	}
	return nil, errors.Join(unsupported(b, "cannot be kept"), s.close())
}

// pack writes a folder's archive to a file without a name, which is gone with
// this process however that ends. It is in the folder at, "" that for temporary
// files.
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

var errTooLarge = errors.New("there is more than there is room for")

// limited takes no more than so many bytes.
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

// close throws away what is kept. Those that are being made of it get it first.
func (s *Snapshot) close() error {
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

// Restore makes a sandbox for its owner that goes on from a snapshot. Of a, the
// name and the times count.
func (m *Manager) Restore(ctx context.Context, owner, id string, a Ask) (*Box, error) {
	s, err := m.FindSnapshot(owner, id)
	if err != nil {
		return nil, err
	}
	return m.admit(func() (*Box, error) { return m.restore(ctx, s, a) })
}

func (m *Manager) restore(ctx context.Context, s *Snapshot, a Ask) (b *Box, err error) {
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
	memory := fill(fill(ask.Limits, s.kind.Limits), m.o.Limits).MemoryMiB
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

// unpack makes a sandbox and puts the files into it.
func (m *Manager) unpack(ctx context.Context, s *Snapshot, ask Ask) (*Box, error) {
	b, err := m.makeOf(ctx, m.snapshotOwner(s), ask, s.kind)
	if err != nil {
		return nil, err
	}
	b.Snapshot = true
	into, ok := b.Sandbox.(sandbox.Archive)
	if !ok {
		err = unsupported(b, "take no files in")
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

// Fork makes another sandbox that goes on from where one is now. kept tells
// what it has of it. A place and the room for a snapshot are taken before
// anything is written.
func (m *Manager) Fork(ctx context.Context, b *Box, a Ask) (fork *Box, kept string, err error) {
	fork, err = m.admit(func() (*Box, error) {
		r, err := m.reserveSnapshot(b, false)
		if err != nil {
			return nil, err
		}
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.giveBack(r)
		}()
		s, err := m.take(ctx, b, r)
		if err != nil {
			return nil, err
		}
		defer func() {
			if err := s.close(); err != nil {
				m.o.Log.Warn("a snapshot left something behind", "error", err)
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

// FindSnapshot is an owner's snapshot; the error is ErrNoSnapshot.
func (m *Manager) FindSnapshot(owner, id string) (*Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.snapshots[id]; s != nil && s.owner == owner {
		return s, nil
	}
	return nil, ErrNoSnapshot
}

// snapshotOwner is whose snapshot that is now.
func (m *Manager) snapshotOwner(s *Snapshot) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.owner
}

// Snapshots are an owner's, the oldest first.
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

// RemoveSnapshot throws an owner's snapshot away; what was made of it lives on.
func (m *Manager) RemoveSnapshot(owner, id string) error {
	m.mu.Lock()
	s := m.snapshots[id]
	if s == nil || s.owner != owner {
		m.mu.Unlock()
		return ErrNoSnapshot
	}
	delete(m.snapshots, id)
	m.mu.Unlock()
	return s.close()
}

// closeSnapshots throws all away.
func (m *Manager) closeSnapshots() error {
	m.mu.Lock()
	all := m.snapshots
	m.snapshots = map[string]*Snapshot{}
	m.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
