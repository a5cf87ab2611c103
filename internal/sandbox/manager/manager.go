// Package manager owns the sandboxes of a host: it records their owners, limits their lifetime and number, and
// keeps pools of ready ones.
//
// A sandbox belongs to one owner; for all others it does not exist. Operations on one sandbox never wait for
// another.
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

// Options are for New. Only Ladder and NewID are required.
type Options struct {
	Ladder  []LadderEntry // the drivers that may be requested, the preferred first
	Default string        // the driver used if none is requested; "" means the first that works and is strong enough

	Templates map[string]Template // by name
	// Image prepares the image that a template names, and keeps it until release is called. It may take
	// minutes; progress, which may be nil, is called with the bytes done and in total. Nil means that there
	// are no images.
	Image func(ctx context.Context, ref string,
		progress func(done, total int64)) (image *sandbox.Image, release func(), err error)
	// MayImage returns an error if a caller may not name an image; nil means that callers may name none.
	MayImage func(ref string) error

	Limits sandbox.Limits // defaults of a sandbox; zero fields mean those of sandbox.Defaults
	// Highest limits that may be requested; zero fields mean at least those of Limits, see ceiling.
	Most      sandbox.Limits
	Idle      time.Duration // a sandbox ends if it is unused for this long; 0 means DefaultIdle
	Lifetime  time.Duration // a sandbox ends after this time in any case; 0 means DefaultLifetime
	Sandboxes int           // open at once, of all owners together; 0 means DefaultMost
	// Claim takes one of the sandboxes for a principal, or returns why it gets none. Nil means that the first
	// principal that asks gets one. release is called when the sandbox has ended.
	Claim func(principal string, administrator bool) (release func(), err error)
	Least sandbox.Tier // drivers below this tier are not used

	MemoryMiB    int // most memory of all sandboxes together, by their limits; 0 means no limit
	PrincipalMiB int // most memory of one principal's sandboxes; 0 means no limit

	Snapshots     int           // kept at once, of all owners together; 0 means DefaultSnapshots
	SnapshotBytes int64         // most bytes of all of them; 0 means DefaultSnapshotBytes
	SnapshotLife  time.Duration // how long one is kept; 0 means DefaultSnapshotLife
	// Folder of the snapshots' files, which should be on a disk; created when needed; "" means the folder for
	// temporary files.
	Folder string

	NoPool bool // keep no sandboxes ready
	Ready  int  // how many are kept ready; 0 means 3
	Boots  int  // how many are made ready concurrently; 0 means twice the number of processors

	NewID   func(kind string) string        // makes ids that cannot be guessed
	Publish func(subject string, event any) // publishes an event; nil means none are published
	Log     *slog.Logger                    // nil means nothing is logged
}

// ErrNotFound is returned for every id that is not one of the caller's sandboxes, whether it exists or not.
var ErrNotFound = errors.New("sandbox not found or invalid ID")

// ErrFull is returned if the most sandboxes are open.
var ErrFull = errors.New("max sandbox limit reached")

var errEnded = errors.New("the host is closing")

// Manager is safe for concurrent use. The caller of New must call Close.
type Manager struct {
	o    Options
	life context.Context // ends with Close; it bounds work that belongs to no call
	end  context.CancelFunc
	runs sync.WaitGroup

	ladder []*ladderDriver

	mu      sync.Mutex
	closed  bool
	served  bool                 // pools are enabled
	first   key                  // key of the default template, once it is known
	pools   map[key]*pool.Pool   // of templates that were requested
	scripts map[key]*atomic.Bool // of templates: whether JavaScript has run
	boxes   map[string]*Box
	making  int // boxes that are not registered yet
	granted grantedMemory

	images    map[string]*imageRef // of templates that were requested, by reference
	snapshots map[string]*Snapshot
	keeping   int   // snapshots that are not registered yet
	reserved  int64 // bytes reserved for snapshots being made, including forks
}

// New returns a manager. It makes no sandboxes until Create or Serve is called.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Publish == nil {
		o.Publish = func(string, any) {}
	}
	o.Limits = fillLimits(o.Limits, sandbox.Defaults())
	o.Most = fillLimits(o.Most, ceiling(o.Limits))
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Lifetime = cmp.Or(o.Lifetime, DefaultLifetime)
	o.Sandboxes = cmp.Or(o.Sandboxes, DefaultMost)
	o.Snapshots = cmp.Or(o.Snapshots, DefaultSnapshots)
	o.SnapshotBytes = cmp.Or(o.SnapshotBytes, DefaultSnapshotBytes)
	o.SnapshotLife = cmp.Or(o.SnapshotLife, DefaultSnapshotLife)
	m := &Manager{
		o:         o,
		boxes:     map[string]*Box{},
		pools:     map[key]*pool.Pool{},
		images:    map[string]*imageRef{},
		scripts:   map[key]*atomic.Bool{},
		snapshots: map[string]*Snapshot{},
	}
	for _, r := range o.Ladder {
		m.ladder = append(m.ladder, &ladderDriver{LadderEntry: r})
	}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// fillLimits replaces each zero field of l by that of by.
func fillLimits(l, by sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB:   cmp.Or(l.MemoryMiB, by.MemoryMiB),
		VCPUs:       cmp.Or(l.VCPUs, by.VCPUs),
		Processes:   cmp.Or(l.Processes, by.Processes),
		DiskMiB:     cmp.Or(l.DiskMiB, by.DiskMiB),
		Descriptors: cmp.Or(l.Descriptors, by.Descriptors),
		OutputBytes: cmp.Or(l.OutputBytes, by.OutputBytes),
		Call:        cmp.Or(l.Call, by.Call),
	}
}

// ceiling returns the default of Options.Most.
func ceiling(l sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB:   max(32768, l.MemoryMiB),
		VCPUs:       max(32, l.VCPUs),
		Processes:   max(4096, l.Processes),
		DiskMiB:     max(16384, l.DiskMiB),
		Descriptors: max(65536, l.Descriptors),
		OutputBytes: max(16<<20, l.OutputBytes),
		Call:        max(time.Hour, l.Call),
	}
}

// Spec describes a requested sandbox. The zero value asks for the defaults.
type Spec struct {
	Name     string         // a name chosen by the owner
	Limits   sandbox.Limits // zero fields take the manager's
	Env      []string       // NAME=value
	Idle     time.Duration  // 0, or more than the manager's, means the manager's
	Lifetime time.Duration  // as Idle

	Template string       // "" means DefaultTemplate
	Image    string       // overrides the template's, if Options.MayImage allows it
	Driver   string       // "" means the template's, or Options.Default
	Least    sandbox.Tier // the least tier; Options.Least applies as well

	Administrator bool // the sandbox may be one of those that are kept for administrators

	Progress func(done, total int64) // called with the progress of preparing an image; may be nil
}

// Create makes a sandbox for an owner.
func (m *Manager) Create(ctx context.Context, owner string, a Spec) (*Box, error) {
	return m.admit(owner, a, func() (*Box, error) { return m.makeBox(ctx, owner, a) })
}

// admit registers what make returns, if the limit of sandboxes allows one more.
func (m *Manager) admit(owner string, a Spec, make func() (*Box, error)) (*Box, error) {
	release, err := m.claim(owner, a)
	if err != nil {
		return nil, err
	}
	if err := m.reserve(); err != nil {
		release()
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
		b.release = release
		m.runs.Add(1) // for begin, before Close waits
	}
	m.mu.Unlock()
	if err != nil {
		release()
		if b != nil {
			b.abandon()
		}
		return nil, err
	}
	b.markInUse()
	return b, nil
}

// claim takes one of the sandboxes for a principal.
func (m *Manager) claim(owner string, a Spec) (release func(), err error) {
	if m.o.Claim == nil {
		return func() {}, nil
	}
	if release, err = m.o.Claim(principalOf(owner), a.Administrator); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFull, err)
	}
	return release, nil
}

// reserve counts a sandbox to be made, so that concurrent calls do not exceed the limit.
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

func (m *Manager) makeBox(ctx context.Context, owner string, a Spec) (*Box, error) {
	k, err := m.kind(ctx, a)
	if err != nil {
		return nil, err
	}
	defer k.lease.drop() // the sandbox holds its own reference
	return m.makeOf(ctx, owner, a, &k)
}

func (m *Manager) makeOf(ctx context.Context, owner string, a Spec, k *kind) (*Box, error) {
	limits, err := fillLimits(fillLimits(a.Limits, k.Limits), m.o.Limits).Within(m.o.Most)
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
	m.keepTemplate(k)
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

// newBox returns a box without its sandbox. It holds the image and its memory until it is abandoned or has
// ended.
func (m *Manager) newBox(owner string, k *kind, a Spec, memoryMiB int) (*Box, error) {
	if err := m.grant(owner, memoryMiB); err != nil {
		return nil, err
	}
	now := time.Now()
	k.lease.retain()
	return &Box{
		memory:     memoryMiB,
		ID:         m.o.NewID("sandbox"),
		owner:      owner,
		Name:       a.Name,
		Created:    now,
		last:       now,
		Driver:     k.rung.Name,
		Tier:       k.rung.driver.Capabilities().Tier,
		Template:   cmp.Or(a.Template, DefaultTemplate),
		manager:    m,
		kind:       k,
		ask:        a,
		env:        slices.Concat(k.Env, a.Env),
		idle:       shorter(a.Idle, m.o.Idle),
		life:       shorter(a.Lifetime, m.o.Lifetime),
		background: map[string]*Background{},
		out:        networkAccess{setting: make(chan struct{}, 1)},
	}, nil
}

func shorter(asked, most time.Duration) time.Duration {
	if asked <= 0 || asked > most {
		return most
	}
	return asked
}

// FindBox returns an owner's sandbox, or ErrNotFound.
func (m *Manager) FindBox(owner, id string) (*Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil && b.owner == owner {
		return b, nil
	}
	return nil, ErrNotFound
}

// Owner returns the owner of a sandbox, or ErrNotFound.
func (m *Manager) Owner(id string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		return b.owner, nil
	}
	return "", ErrNotFound
}

// List returns an owner's sandboxes, the oldest first.
func (m *Manager) List(owner string) []*Box {
	return m.matching(func(b *Box) bool { return b.owner == owner })
}

// All returns the sandboxes of all owners, the oldest first.
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

// Alive returns the number of open sandboxes of all owners.
func (m *Manager) Alive() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.boxes)
}

// Destroy closes an owner's sandbox and releases its resources. It returns ErrNotFound, or the error of the
// release.
func (m *Manager) Destroy(owner, id string) error {
	b, err := m.FindBox(owner, id)
	if err != nil {
		return err
	}
	if !b.destroyBox("destroyed") {
		return ErrNotFound // a concurrent call was faster
	}
	return b.Sandbox.Close()
}

// EndOwned closes the sandboxes and removes the snapshots for which match returns true. match is given their
// owner and creation time. It returns a line for each that has ended.
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
				m.o.Log.Error("a sandbox of a removed user was not released completely", "sandbox", b.ID, "err", err)
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

// HandOver gives the sandboxes and snapshots for which heir names a new owner to that owner, and returns a
// line for each. A sandbox whose memory exceeds the new owner's limit stays.
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
			m.o.Log.Warn("a sandbox is not handed over: its memory exceeds what the new owner has left",
				"sandbox", b.ID, "to", to)
			continue
		}
		m.releaseMemory(b)
		m.granted.all += memory
		m.granted.of[p] += memory
		b.owner, b.memory = to, memory
		m.o.Publish("sandbox.handed_over", Event{ID: b.ID, Owner: to, From: from})
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

// Close closes every sandbox, the snapshots, the pools and the drivers.
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
			b.destroyBox("closed")
			b.Sandbox.Close()
		})
	}
	wg.Wait()
	m.runs.Wait()
	errs := []error{m.closeSnapshots()}
	m.mu.Lock()
	images := m.images
	m.images = nil // so that no call adds a reference
	m.mu.Unlock()
	for _, l := range images {
		l.drop()
	}
	for _, r := range m.ladder {
		errs = append(errs, r.closeDriver())
	}
	return errors.Join(errs...)
}
