// Package manager owns the sandboxes of a host: it knows whose each is, how
// long it may live and how many there may be, and keeps some ready.
//
// A sandbox belongs to one owner; to everybody else it does not exist. What is
// made, used and ended in one never waits for another.
package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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

// Options are for New. Only Driver is needed.
type Options struct {
	// Driver makes the driver when it is needed first. The manager closes it.
	Driver    func() (sandbox.Driver, error)
	Limits    sandbox.Limits // what nobody asked otherwise for; zero members mean those of sandbox.Defaults
	Most      sandbox.Limits // what may be asked for; zero members mean those of Limits, or more where Ceiling says so
	Idle      time.Duration  // a sandbox ends when nobody has used it for so long; 0 means DefaultIdle
	Lifetime  time.Duration  // it ends in any case after; 0 means DefaultLifetime
	Sandboxes int            // alive at once, of all owners together; 0 means DefaultMost
	Least     sandbox.Tier   // a driver below this tier makes none

	NoPool bool // keep none ready
	Ready  int  // how many are kept ready; 0 means 3
	Boots  int  // how many are made ready at the same time; 0 means twice the number of processors

	NewID func(kind string) string       // makes handles nobody can guess
	Tell  func(subject string, fact any) // hears of what happened; nil means nobody does
	Log   *slog.Logger                   // nil means nothing is logged
}

// ErrNotFound is the one answer to every id that is none of the asker's,
// whether or not there is such a sandbox.
var ErrNotFound = errors.New("sandbox not found or invalid ID")

// ErrFull is the answer when there are as many sandboxes as there may be.
var ErrFull = errors.New("max sandbox limit reached")

var errEnded = errors.New("the host is closing")

// Manager is safe for concurrent use. Whoever makes it calls Close.
type Manager struct {
	o    Options
	life context.Context // of what runs for nobody in particular
	end  context.CancelFunc
	runs sync.WaitGroup

	mu     sync.Mutex
	closed bool
	driver sandbox.Driver // nil until it is needed
	pool   *pool.Pool     // nil until it is served, or when there is none
	boxes  map[string]*Box
	making int // boxes that are not in the map yet
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
	o.Idle, o.Lifetime, o.Sandboxes = or(o.Idle, DefaultIdle), or(o.Lifetime, DefaultLifetime), or(o.Sandboxes, DefaultMost)
	m := &Manager{o: o, boxes: map[string]*Box{}}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// fill takes for each zero member of l that of by.
func fill(l, by sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB: or(l.MemoryMiB, by.MemoryMiB), VCPUs: or(l.VCPUs, by.VCPUs), Processes: or(l.Processes, by.Processes),
		DiskMiB: or(l.DiskMiB, by.DiskMiB), Descriptors: or(l.Descriptors, by.Descriptors),
		OutputBytes: or(l.OutputBytes, by.OutputBytes), Call: or(l.Call, by.Call),
	}
}

// ceiling is the most that may be asked for where nothing says so.
func ceiling(l sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB: max(32768, l.MemoryMiB), VCPUs: max(32, l.VCPUs), Processes: max(4096, l.Processes), DiskMiB: max(16384, l.DiskMiB),
		Descriptors: max(65536, l.Descriptors), OutputBytes: max(16<<20, l.OutputBytes), Call: max(time.Hour, l.Call),
	}
}

// Driver is the driver, made if need be.
func (m *Manager) Driver() (sandbox.Driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errEnded
	}
	if m.driver == nil {
		d, err := m.o.Driver()
		if err != nil {
			return nil, err
		}
		if t := d.Capabilities().Tier; t < m.o.Least {
			d.Close()
			return nil, fmt.Errorf("sandboxes of the driver %s are of the tier %q, and this host's settings ask for %q at least: gatehouse doctor tells what is missing for a higher one", d.Name(), t, m.o.Least)
		}
		m.driver = d
	}
	return m.driver, nil
}

// Serve says that sandboxes are wanted, so that some are kept ready from now
// on. It never waits.
func (m *Manager) Serve() {
	if m.o.NoPool {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.pool != nil {
		return
	}
	p := &pool.Pool{Driver: priming{m}, Spec: sandbox.Spec{Limits: m.o.Limits}, Log: m.o.Log, Ready: m.o.Ready, Boots: m.o.Boots}
	m.pool = p
	m.runs.Go(func() {
		if err := p.Run(m.life); err != nil {
			m.o.Log.Warn("the pool of sandboxes", "error", err)
		}
	})
}

// Pool tells how the pool does; ok is false while there is none.
func (m *Manager) Pool() (s pool.Stats, ok bool) {
	m.mu.Lock()
	p := m.pool
	m.mu.Unlock()
	if p == nil {
		return s, false
	}
	return p.Stats(), true
}

// Ask is what a new sandbox is to be like. Its zero value is an ordinary one.
type Ask struct {
	Name     string         // for its owner to know it by
	Limits   sandbox.Limits // zero members take the manager's
	Env      []string       // NAME=value
	Idle     time.Duration  // 0, and what is more than the manager's, means the manager's
	Lifetime time.Duration  // the same
}

// Create makes a sandbox for an owner.
func (m *Manager) Create(ctx context.Context, owner string, a Ask) (*Box, error) {
	limits, err := fill(a.Limits, m.o.Limits).Within(m.o.Most)
	if err != nil {
		return nil, err
	}
	if err := m.reserve(); err != nil {
		return nil, err
	}
	b, err := m.make(ctx, owner, a, limits)
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
			b.Sandbox.Close()
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

func (m *Manager) make(ctx context.Context, owner string, a Ask, limits sandbox.Limits) (*Box, error) {
	d, err := m.Driver()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	p := m.pool
	m.mu.Unlock()
	spec := sandbox.Spec{Limits: limits, Env: a.Env}
	b := &Box{
		Owner: owner, Name: a.Name, Created: time.Now(), Driver: d.Name(), Tier: d.Capabilities().Tier, manager: m, env: a.Env,
		idle: shorter(a.Idle, m.o.Idle), life: shorter(a.Lifetime, m.o.Lifetime), background: map[string]*Background{},
	}
	if p != nil {
		b.Sandbox, b.Warm, err = p.Claim(ctx, spec)
	} else {
		b.Sandbox, err = d.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	if s, ok := b.Sandbox.(primed); ok {
		b.Sandbox = s.Sandbox
		if s.python != nil {
			b.python = s.python
			b.pythonLimits = s.limits
		}
	}
	b.ID, b.last = m.o.NewID("sandbox"), b.Created
	return b, nil
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
	if b := m.boxes[id]; b != nil && b.Owner == owner {
		return b, nil
	}
	return nil, ErrNotFound
}

// List are an owner's sandboxes, the oldest first.
func (m *Manager) List(owner string) (all []*Box) {
	m.mu.Lock()
	for _, b := range m.boxes {
		if b.Owner == owner {
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

// Close ends every sandbox, the pool and the driver.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	driver := m.driver
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
	if driver == nil {
		return nil
	}
	return driver.Close()
}
