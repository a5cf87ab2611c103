package manager

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
)

// Box is a sandbox with an owner. It is safe for concurrent use. One struct, because
// each of its locks guards one part of the state of one sandbox.
type Box struct {
	sandbox.Sandbox

	ID, Name string
	Created  time.Time
	Driver   string
	Tier     sandbox.Tier
	Warm     bool   // it came from the pool
	Snapshot bool   // it was restored from a snapshot
	Template string // the template it was made from

	manager    *Manager
	owner      string // guarded by Manager.mu
	kind       *kind
	ask        Spec // what was requested
	env        []string
	idle, life time.Duration
	memory     int    // granted MiB; guarded by Manager.mu
	release    func() // of its claim; set before the box is found

	// mu guards the fields up to pausing.
	mu         sync.Mutex
	using      int       // calls in progress
	last       time.Time // time of the last use
	calls      int       // calls so far
	timer      *time.Timer
	left       bool // removed from the manager
	paused     bool
	background map[string]*Background
	ports      map[uint16]*portForwarder // exposed ports
	loopback   netip.Addr                // host address of the exposed ports; zero until the first one

	pausing sync.Mutex // serializes Pause and Resume, which may take seconds; locked before mu

	starting     sync.Mutex           // guards the waiting interpreters; locked only briefly, before mu
	python       *interpreter.Forker  // nil until requested
	pythonLimits sandbox.Limits       // limits it was started with
	pythonComes  chan struct{}        // closed when the one being started is ready or has failed; nil if none is
	noPython     bool                 // none can be started here
	node         *interpreter.Starter // nil until requested
	nodeLimits   sandbox.Limits       // limits it was started with
	nodeComes    bool                 // one is being started
	noNode       bool                 // none can be started here
	turn         int                  // incremented when the environment of interpreters changes

	contexts contextTable
	out      networkAccess
}

// Event is the event that the manager publishes about a sandbox: sandbox.created, sandbox.handed_over or
// sandbox.destroyed.
type Event struct {
	ID       string `json:"id"`
	Owner    string `json:"owner"`
	Driver   string `json:"driver,omitempty"`    // created
	Tier     string `json:"tier,omitempty"`      // created
	FromPool bool   `json:"from_pool,omitempty"` // created
	From     string `json:"from,omitempty"`      // handed_over: the owner before
	Why      string `json:"why,omitempty"`       // destroyed: destroyed, idle, expired, closed or lost
}

// Image names the image that the sandbox was made of: as its caller named it, or by the template, whose image may
// be a folder of the host. "" means the host's programs.
func (b *Box) Image() string {
	switch {
	case b.kind.Image == "":
		return ""
	case b.ask.Image != "":
		return b.ask.Image
	}
	return "of the template " + b.Template
}

// Owner returns the current owner.
func (b *Box) Owner() string {
	b.manager.mu.Lock()
	defer b.manager.mu.Unlock()
	return b.owner
}

// markInUse publishes the creation and starts the timers of the sandbox.
func (b *Box) markInUse() {
	b.manager.o.Publish("sandbox.created", Event{
		ID:       b.ID,
		Owner:    b.Owner(),
		Driver:   b.Driver,
		Tier:     b.Tier.String(),
		FromPool: b.Warm,
	})
	b.mu.Lock()
	b.timer = time.AfterFunc(b.timeUntilEnd(time.Now()), b.checkState)
	b.mu.Unlock()
	go func() {
		defer b.manager.runs.Done()
		b.assign()
		<-b.Sandbox.Done()
		defer b.kind.lease.drop()
		b.destroyBox("lost") // no effect if it was removed for another reason before
	}()
}

// assign has the sandbox share the processors with its owner's programs and other sandboxes, if its driver can. It runs
// beside the first calls, because the kernel may take some 15 ms to move a process. A sandbox that is handed over keeps
// its place.
func (b *Box) assign() {
	s, ok := b.Sandbox.(interface{ Assign(principal string) error })
	if !ok {
		return
	}
	if err := s.Assign(principalOf(b.Owner())); err != nil && !errors.Is(err, sandbox.ErrClosed) {
		b.manager.o.Log.Warn("a sandbox has its own share of the processors", "sandbox", b.ID, "err", err)
	}
}

// abandon closes a box that was never registered.
func (b *Box) abandon() {
	if b.Sandbox != nil {
		b.Sandbox.Close()
	}
	b.kind.lease.drop()
	b.manager.mu.Lock()
	b.manager.releaseMemory(b)
	b.manager.mu.Unlock()
}

// timeUntilEnd returns the time until the box may have to end. The caller holds b.mu.
func (b *Box) timeUntilEnd(now time.Time) time.Duration {
	left := b.Created.Add(b.life).Sub(now)
	if b.using > 0 || b.paused {
		return left
	}
	return max(min(left, b.last.Add(b.idle).Sub(now)), 0)
}

// checkState ends the box if its time has come.
func (b *Box) checkState() {
	now := time.Now()
	b.mu.Lock()
	why := ""
	switch {
	case b.left:
	case !now.Before(b.Created.Add(b.life)):
		why = "expired"
	case b.using == 0 && !b.paused && !now.Before(b.last.Add(b.idle)):
		why = "idle"
	default:
		b.timer.Reset(b.timeUntilEnd(now))
	}
	b.mu.Unlock()
	if why != "" && b.destroyBox(why) {
		b.Sandbox.Close()
	}
}

// destroyBox removes the box from the manager, and reports whether it did.
func (b *Box) destroyBox(why string) bool {
	m := b.manager
	m.mu.Lock()
	there := m.boxes[b.ID] == b
	if there {
		delete(m.boxes, b.ID)
		m.releaseMemory(b)
	}
	owner := b.owner
	m.mu.Unlock()
	if !there {
		return false
	}
	b.release()
	b.mu.Lock()
	b.left = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	b.closePorts()
	m.o.Publish("sandbox.destroyed", Event{ID: b.ID, Owner: owner, Why: why})
	return true
}

// Use keeps the box from expiring as idle until done is called.
func (b *Box) Use() (done func()) {
	b.mu.Lock()
	b.using++
	b.calls++
	b.mu.Unlock()
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.using--
		b.last = time.Now()
		if b.using == 0 && b.timer != nil && !b.left {
			b.timer.Reset(b.timeUntilEnd(b.last))
		}
	})
}

// Status is the state of a sandbox at a moment.
type Status struct {
	Busy      bool
	Paused    bool
	Calls     int       // made so far
	Processes int       // running in the background
	Contexts  int       // contexts of code
	IdleAt    time.Time // when it ends unless it is used; while it is paused, ExpiresAt
	ExpiresAt time.Time // when it ends even if it is used
}

// Status returns the state of the box.
func (b *Box) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := Status{
		Busy:      b.using > 0,
		Paused:    b.paused,
		Calls:     b.calls,
		Contexts:  b.contexts.size(),
		IdleAt:    b.last.Add(b.idle),
		ExpiresAt: b.Created.Add(b.life),
	}
	if b.paused {
		f.IdleAt = f.ExpiresAt
	}
	for _, p := range b.background {
		if !p.over() {
			f.Processes++
		}
	}
	return f
}

// Files returns access to its files, or an error if its driver has none.
func (b *Box) Files() (sandbox.Files, error) {
	if f, ok := b.Sandbox.(sandbox.Files); ok {
		return f, nil
	}
	return nil, unsupported(b, "do not support files")
}

// Run runs a program to its end.
func (b *Box) Run(ctx context.Context, c sandbox.Command) (sandbox.Result, error) {
	p, err := b.Sandbox.Exec(ctx, c)
	if err != nil {
		return sandbox.Result{}, err
	}
	return p.Wait()
}

// forker returns the waiting Python, or nil if none is ready before ctx ends. It replaces one that was started
// with other limits.
func (b *Box) forker(ctx context.Context) *interpreter.Forker {
	b.starting.Lock()
	if b.python != nil && (!b.python.Alive() || !alike(b.pythonLimits, b.Limits())) {
		go b.python.Close()
		b.python = nil
	}
	if b.python != nil || b.noPython {
		defer b.starting.Unlock()
		return b.python
	}
	comes := b.pythonComes
	if comes == nil {
		comes = make(chan struct{})
		b.pythonComes = comes
		go b.startForker(comes, b.turn, b.Limits()) // it ends with the sandbox at the latest
	}
	b.starting.Unlock()
	select {
	case <-comes:
		b.starting.Lock()
		defer b.starting.Unlock()
		return b.python
	case <-ctx.Done():
		return nil
	}
}

func (b *Box) startForker(comes chan struct{}, turn int, limits sandbox.Limits) {
	f, err := interpreter.StartForker(b.manager.life, b.Sandbox)
	b.starting.Lock()
	defer b.starting.Unlock()
	defer close(comes)
	b.pythonComes = nil
	switch {
	case err != nil:
		b.noPython = b.lasting(err)
	case b.turn != turn:
		go f.Close()
	default:
		b.python, b.pythonLimits = f, limits
	}
}

// lasting reports whether a failed start will always fail. A paused or ended sandbox does not count.
func (b *Box) lasting(err error) bool {
	return !errors.Is(err, sandbox.ErrPaused) && !errors.Is(err, sandbox.ErrClosed) && !b.Paused() &&
		b.manager.life.Err() == nil
}

// starter returns the waiting Node, or nil. The first call returns nil and starts one for later calls, because
// a caller who runs JavaScript once will likely do so again, and others should not pay for it.
func (b *Box) starter() *interpreter.Starter {
	b.starting.Lock()
	defer b.starting.Unlock()
	if b.node != nil && (!b.node.Alive() || !alike(b.nodeLimits, b.Limits())) {
		go b.node.Close()
		b.node = nil
	}
	if b.node != nil {
		return b.node
	}
	if !b.nodeComes && !b.noNode && b.Limits().MemoryMiB >= leastForNode {
		b.nodeComes = true
		go b.startNode(b.turn, b.Limits()) // it ends with the sandbox at the latest
	}
	return nil
}

func (b *Box) startNode(turn int, limits sandbox.Limits) {
	s, err := interpreter.StartNode(b.manager.life, b.Sandbox)
	b.starting.Lock()
	defer b.starting.Unlock()
	b.nodeComes = false
	switch {
	case err != nil:
		b.noNode = b.lasting(err)
	case b.turn != turn:
		go s.Close()
	default:
		b.node, b.nodeLimits = s, limits
	}
}

// leastForNode is the least memory in MiB of a sandbox with a waiting Node, which takes about 40.
const leastForNode = 128

// alike reports whether two sets of limits are equal for a running process. Other limits apply to the sandbox
// as a whole and change for running processes too.
func alike(a, b sandbox.Limits) bool {
	return a.Descriptors == b.Descriptors && a.Processes == b.Processes && a.DiskMiB == b.DiskMiB &&
		a.MemoryMiB == b.MemoryMiB
}
