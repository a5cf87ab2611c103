// Package manager owns the sandboxes of a host: it knows whose each is, how
// long it may live and how many there may be, and keeps some ready.
//
// A sandbox belongs to one owner; to everybody else it does not exist. What is
// made, used and ended in one never waits for another.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/pool"
)

// Defaults of Options.
const (
	DefaultIdle     = 15 * time.Minute
	DefaultLifetime = 24 * time.Hour
	DefaultMost     = 100
)

// Options are for New. Only Ladder and NewID are needed.
type Options struct {
	Ladder  []Rung // the drivers that may be asked for, the preferred first
	Default string // the one of them that is meant when nobody asks; "" means the first that works and is strong enough

	Templates map[string]Template // by name
	// Image makes ready what a template's image names, and keeps it until
	// release is called. It may take minutes; progress, which may be nil, is
	// told how many bytes of how many are there. Nil means that there are no
	// images.
	Image func(ctx context.Context, ref string, progress func(done, total int64)) (image *sandbox.Image, release func(), err error)
	// MayImage says why a caller may not name an image, if so; nil means that
	// none may be named.
	MayImage func(ref string) error

	Limits    sandbox.Limits // what nobody asked otherwise for; zero members mean those of sandbox.Defaults
	Most      sandbox.Limits // what may be asked for; zero members mean those of Limits, or more where Ceiling says so
	Idle      time.Duration  // a sandbox ends when nobody has used it for so long; 0 means DefaultIdle
	Lifetime  time.Duration  // it ends in any case after; 0 means DefaultLifetime
	Sandboxes int            // alive at once, of all owners together; 0 means DefaultMost
	Least     sandbox.Tier   // a driver below this tier makes none

	MemoryMiB    int // that the limits of all sandboxes may come to together; 0 means any
	PrincipalMiB int // that those of one principal may; 0 means any

	Snapshots     int           // kept at once, of all owners together; 0 means DefaultSnapshots
	SnapshotBytes int64         // that all of them may take; 0 means DefaultSnapshotBytes
	SnapshotLife  time.Duration // how long one is kept; 0 means DefaultSnapshotLife
	Folder        string        // where files of snapshots are, best on a disk; made when it is needed; "" means that for temporary files

	NoPool bool // keep none ready
	Ready  int  // how many are kept ready; 0 means 3
	Boots  int  // how many are made ready at the same time; 0 means twice the number of processors

	NewID func(kind string) string        // makes handles nobody can guess
	Tell  func(subject string, event any) // hears of what happened; nil means nobody does
	Log   *slog.Logger                    // nil means nothing is logged
}

// ErrNotFound is the one answer to every id that is none of the asker's,
// whether or not there is such a sandbox.
var ErrNotFound = errors.New("sandbox not found or invalid ID")

// ErrFull is the answer when there are as many sandboxes as there may be.
var ErrFull = errors.New("max sandbox limit reached")

var errEnded = errors.New("the host is closing")

// Manager is safe for concurrent use. Whoever makes it calls Close.
type Manager struct {
	o Options
	// life ends with Close. It is the context of work that belongs to no call.
	life context.Context
	end  context.CancelFunc
	runs sync.WaitGroup

	ladder []*rung

	mu      sync.Mutex
	closed  bool
	served  bool                 // some are to be kept ready
	first   key                  // of the default template, once that is known
	pools   map[key]*pool.Pool   // of templates that were asked for
	scripts map[key]*atomic.Bool // of templates: JavaScript has run
	boxes   map[string]*Box
	making  int // boxes that are not in the map yet
	granted granted

	images    map[string]*lease // of templates, by reference, once they were asked for
	snapshots map[string]*Snapshot
	keeping   int   // snapshots that are not in the map yet
	reserved  int64 // bytes for what is being kept, forks included
}

// New makes a manager, which makes nothing by itself.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Tell == nil {
		o.Tell = func(string, any) {}
	}
	o.Limits = fill(o.Limits, sandbox.Defaults())
	o.Most = fill(o.Most, ceiling(o.Limits))
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Lifetime = cmp.Or(o.Lifetime, DefaultLifetime)
	o.Sandboxes = cmp.Or(o.Sandboxes, DefaultMost)
	o.Snapshots = cmp.Or(o.Snapshots, DefaultSnapshots)
	o.SnapshotBytes = cmp.Or(o.SnapshotBytes, DefaultSnapshotBytes)
	o.SnapshotLife = cmp.Or(o.SnapshotLife, DefaultSnapshotLife)
	m := &Manager{o: o, boxes: map[string]*Box{}, pools: map[key]*pool.Pool{}, images: map[string]*lease{}, scripts: map[key]*atomic.Bool{}, snapshots: map[string]*Snapshot{}}
	for _, r := range o.Ladder {
		m.ladder = append(m.ladder, &rung{Rung: r})
	}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// fill takes for each zero member of l that of by.
func fill(l, by sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB: cmp.Or(l.MemoryMiB, by.MemoryMiB), VCPUs: cmp.Or(l.VCPUs, by.VCPUs), Processes: cmp.Or(l.Processes, by.Processes),
		DiskMiB: cmp.Or(l.DiskMiB, by.DiskMiB), Descriptors: cmp.Or(l.Descriptors, by.Descriptors),
		OutputBytes: cmp.Or(l.OutputBytes, by.OutputBytes), Call: cmp.Or(l.Call, by.Call),
	}
}

// ceiling is the most that may be asked for where nothing says so.
func ceiling(l sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB: max(32768, l.MemoryMiB), VCPUs: max(32, l.VCPUs), Processes: max(4096, l.Processes), DiskMiB: max(16384, l.DiskMiB),
		Descriptors: max(65536, l.Descriptors), OutputBytes: max(16<<20, l.OutputBytes), Call: max(time.Hour, l.Call),
	}
}

// Ask is what a new sandbox is to be like. Its zero value is an ordinary one.
type Ask struct {
	Name     string         // for its owner to know it by
	Limits   sandbox.Limits // zero members take the manager's
	Env      []string       // NAME=value
	Idle     time.Duration  // 0, and what is more than the manager's, means the manager's
	Lifetime time.Duration  // the same

	Template string       // "" means DefaultTemplate
	Image    string       // in place of the template's, where Options.MayImage lets callers choose
	Driver   string       // "" means the template's, or the ladder's
	Least    sandbox.Tier // a driver below this tier makes none, nor one below Options.Least

	Progress func(done, total int64) // hears of an image that is made ready; nil means nobody does
}

// Create makes a sandbox for an owner.
func (m *Manager) Create(ctx context.Context, owner string, a Ask) (*Box, error) {
	return m.admit(func() (*Box, error) { return m.make(ctx, owner, a) })
}

// admit takes in what is made, while there is room for it.
func (m *Manager) admit(make func() (*Box, error)) (*Box, error) {
	if err := m.reserve(); err != nil {
		return nil, err
	}
	b, err := make()
	m.mu.Lock()
	m.making--
	if err == nil && m.closed {
		err = errEnded
	}
	if err == nil {
		m.boxes[b.ID] = b
		m.runs.Add(1) // for begin, while nobody closes
	}
	m.mu.Unlock()
	if err != nil {
		if b != nil {
			b.abandon()
		}
		return nil, err
	}
	b.begin()
	return b, nil
}

// reserve takes a place, so that many asking at once do not get more places
// than there are.
func (m *Manager) reserve() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return errEnded
	case len(m.boxes)+m.making >= m.o.Sandboxes:
		return fmt.Errorf("%w (%d)", ErrFull, m.o.Sandboxes)
	}
	m.making++
	return nil
}

func (m *Manager) make(ctx context.Context, owner string, a Ask) (*Box, error) {
	k, err := m.kind(ctx, a)
	if err != nil {
		return nil, err
	}
	defer k.lease.drop() // the sandbox has its own
	return m.makeOf(ctx, owner, a, &k)
}

func (m *Manager) makeOf(ctx context.Context, owner string, a Ask, k *kind) (*Box, error) {
	limits, err := fill(fill(a.Limits, k.Limits), m.o.Limits).Within(m.o.Most)
	if err != nil {
		return nil, err
	}
	b, err := m.newBox(owner, k, a, limits.MemoryMiB)
	if err != nil {
		return nil, err
	}
	spec := k.spec(limits, a.Env)
	if p := m.pool(k.key); p != nil && k.waits {
		b.Sandbox, b.Warm, err = p.Claim(ctx, spec)
	} else {
		b.Sandbox, err = k.rung.driver.Create(ctx, spec)
	}
	if err != nil {
		b.abandon()
		return nil, k.rung.remedied(ctx, m, err)
	}
	m.keep(k)
	if s, ok := b.Sandbox.(interface{ unwrap() primed }); ok {
		one := s.unwrap()
		b.Sandbox = one.Sandbox
		if one.python != nil {
			b.python, b.pythonLimits = one.python, one.limits
		}
		b.node, b.nodeLimits = one.node, one.limits
	}
	return b, nil
}

// newBox is one without its sandbox. It keeps the image and its memory until it
// is abandoned or has ended.
func (m *Manager) newBox(owner string, k *kind, a Ask, memoryMiB int) (*Box, error) {
	if err := m.grant(owner, memoryMiB); err != nil {
		return nil, err
	}
	now := time.Now()
	k.lease.add()
	return &Box{
		memory: memoryMiB,
		ID:     m.o.NewID("sandbox"), owner: owner, Name: a.Name, Created: now, last: now, Driver: k.rung.Name, Tier: k.rung.driver.Capabilities().Tier,
		Template: cmp.Or(a.Template, DefaultTemplate), manager: m, kind: k, ask: a, env: slices.Concat(k.Env, a.Env),
		idle: shorter(a.Idle, m.o.Idle), life: shorter(a.Lifetime, m.o.Lifetime), background: map[string]*Background{},
		out: wayOut{setting: make(chan struct{}, 1)},
	}, nil
}

func shorter(asked, most time.Duration) time.Duration {
	if asked <= 0 || asked > most {
		return most
	}
	return asked
}

// Find is an owner's sandbox; the error is ErrNotFound.
func (m *Manager) Find(owner, id string) (*Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil && b.owner == owner {
		return b, nil
	}
	return nil, ErrNotFound
}

// Owner is whose sandbox that is; the error is ErrNotFound.
func (m *Manager) Owner(id string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		return b.owner, nil
	}
	return "", ErrNotFound
}

// List are an owner's sandboxes, the oldest first.
func (m *Manager) List(owner string) []*Box {
	return m.matching(func(b *Box) bool { return b.owner == owner })
}

// All are the sandboxes of all owners, the oldest first.
func (m *Manager) All() []*Box { return m.matching(func(*Box) bool { return true }) }

func (m *Manager) matching(match func(*Box) bool) (all []*Box) {
	m.mu.Lock()
	for _, b := range m.boxes {
		if match(b) {
			all = append(all, b)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *Box) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	return all
}

// Alive is how many there are, of all owners.
func (m *Manager) Alive() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.boxes)
}

// Destroy ends an owner's sandbox and returns when nothing of it is left; the
// error is ErrNotFound, or that of what was left.
func (m *Manager) Destroy(owner, id string) error {
	b, err := m.Find(owner, id)
	if err != nil {
		return err
	}
	if !b.leave("destroyed") {
		return ErrNotFound // somebody else did at the same moment
	}
	return b.Sandbox.Close()
}

// EndOwned ends the sandboxes and removes the snapshots for which match holds:
// it is given their owner, and when they were made. It returns a line for each
// that has ended.
func (m *Manager) EndOwned(match func(owner string, made time.Time) bool) (ended []string) {
	m.mu.Lock()
	var boxes []*Box
	var snapshots []*Snapshot
	for _, b := range m.boxes {
		if match(b.owner, b.Created) {
			boxes = append(boxes, b)
		}
	}
	for _, s := range m.snapshots {
		if match(s.owner, s.Created) {
			snapshots = append(snapshots, s)
		}
	}
	m.mu.Unlock()
	lines := make([]string, len(boxes))
	var wg sync.WaitGroup
	for i, b := range boxes {
		wg.Go(func() {
			if err := m.Destroy(b.Owner(), b.ID); err == nil {
				lines[i] = "sandbox " + b.ID + ": " + b.Driver
			} else if !errors.Is(err, ErrNotFound) {
				m.o.Log.Error("a sandbox of a removed user left something behind", "sandbox", b.ID, "err", err)
			}
		})
	}
	wg.Wait()
	for _, s := range snapshots {
		if err := m.RemoveSnapshot(m.snapshotOwner(s), s.ID); err == nil {
			lines = append(lines, "snapshot "+s.ID+": of "+s.Sandbox)
		}
	}
	slices.Sort(lines)
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// HandOver gives the sandboxes and snapshots for which heir names an owner to
// that owner, and returns a line for each. A sandbox whose memory the new owner
// may not have stays.
func (m *Manager) HandOver(heir func(owner string, made time.Time) string) (handed []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		to, from, memory := heir(b.owner, b.Created), b.owner, b.memory
		if to == "" {
			continue
		}
		p := principalOf(to)
		if m.o.PrincipalMiB > 0 && m.granted.of[p]+memory > m.o.PrincipalMiB {
			m.o.Log.Warn("a sandbox is not handed over: its memory is more than the new owner has left", "sandbox", b.ID, "to", to)
			continue
		}
		m.release(b)
		m.granted.all += memory
		m.granted.of[p] += memory
		b.owner, b.memory = to, memory
		m.o.Tell("sandbox.handed_over", Event{ID: b.ID, Owner: to, From: from})
		handed = append(handed, "sandbox "+b.ID+": "+b.Driver)
	}
	for _, s := range m.snapshots {
		if to := heir(s.owner, s.Created); to != "" {
			s.owner = to
			handed = append(handed, "snapshot "+s.ID+": of "+s.Sandbox)
		}
	}
	slices.Sort(handed)
	return handed
}

// Close ends every sandbox, the snapshots, the pools and the drivers.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	var left []*Box
	for _, b := range m.boxes {
		left = append(left, b)
	}
	m.mu.Unlock()
	m.end()
	var wg sync.WaitGroup
	for _, b := range left {
		wg.Go(func() {
			b.leave("closed")
			b.Sandbox.Close()
		})
	}
	wg.Wait()
	m.runs.Wait()
	errs := []error{m.closeSnapshots()}
	m.mu.Lock()
	images := m.images
	m.images = nil // nobody may add to what may be gone
	m.mu.Unlock()
	for _, l := range images {
		l.drop()
	}
	for _, r := range m.ladder {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}
