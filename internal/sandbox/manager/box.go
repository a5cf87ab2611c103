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
// what is below each of its locks is one part of the life of one sandbox.
type Box struct {
	sandbox.Sandbox

	ID, Name string
	Created  time.Time
	Driver   string
	Tier     sandbox.Tier
	Warm     bool   // it came from the pool
	Snapshot bool   // it was made of one
	Template string // it was made of

	manager    *Manager
	owner      string // Manager.mu guards it
	kind       *kind
	ask        Ask // it was made for
	env        []string
	idle, life time.Duration
	memory     int // MiB that it was granted; Manager.mu guards it

	// mu guards what follows, up to pausing.
	mu         sync.Mutex
	using      int       // calls under way
	last       time.Time // when somebody used it last
	calls      int       // that were made in it
	timer      *time.Timer
	left       bool // it is in the manager's map no more
	paused     bool
	background map[string]*Background
	ports      map[uint16]*door // that are open
	loopback   netip.Addr       // of this machine, at which they are open; zero until the first is

	pausing sync.Mutex // one of Pause and Resume at a time; before mu

	starting     sync.Mutex           // guards what waits to run code, and is held only to look; before mu
	python       *interpreter.Forker  // nil until it is wanted
	pythonLimits sandbox.Limits       // it was started with
	pythonComes  chan struct{}        // closed when the one that is being started is there or is not to be had; nil when none is
	noPython     bool                 // none can be had in here
	node         *interpreter.Starter // nil until it is wanted
	nodeLimits   sandbox.Limits       // it was started with
	nodeComes    bool                 // one is being started
	noNode       bool                 // none can be had in here
	turn         int                  // of the environment that what is started finds

	contexts contextBook
	out      wayOut
}

// Event is what the manager publishes about a sandbox: sandbox.created,
// sandbox.handed_over and sandbox.destroyed.
type Event struct {
	ID       string `json:"id"`
	Owner    string `json:"owner"`
	Driver   string `json:"driver,omitempty"`    // created
	Tier     string `json:"tier,omitempty"`      // created
	FromPool bool   `json:"from_pool,omitempty"` // created
	From     string `json:"from,omitempty"`      // handed_over: the owner before
	Why      string `json:"why,omitempty"`       // destroyed: destroyed, idle, expired, closed or lost
}

// Image names the image that it was made of, as its caller did, or by the
// template, whose image may be a folder of the host; "" means the host's own
// programs.
func (b *Box) Image() string {
	switch {
	case b.kind.Image == "":
		return ""
	case b.ask.Image != "":
		return b.ask.Image
	}
	return "of the template " + b.Template
}

// Owner is whose sandbox it is now.
func (b *Box) Owner() string {
	b.manager.mu.Lock()
	defer b.manager.mu.Unlock()
	return b.owner
}

// begin lets it live: from here on it ends by its own.
func (b *Box) begin() {
	b.manager.o.Tell("sandbox.created", Event{ID: b.ID, Owner: b.Owner(), Driver: b.Driver, Tier: b.Tier.String(), FromPool: b.Warm})
	b.mu.Lock()
	b.timer = time.AfterFunc(b.wait(time.Now()), b.look)
	b.mu.Unlock()
	go func() {
		defer b.manager.runs.Done()
		<-b.Sandbox.Done()
		defer b.kind.lease.drop()
		b.leave("lost") // unless somebody ended it, who has said so before
	}()
}

// abandon ends one that was never taken in.
func (b *Box) abandon() {
	if b.Sandbox != nil {
		b.Sandbox.Close()
	}
	b.kind.lease.drop()
	b.manager.mu.Lock()
	b.manager.release(b)
	b.manager.mu.Unlock()
}

// wait is how long until it may have to end. b.mu is held.
func (b *Box) wait(now time.Time) time.Duration {
	left := b.Created.Add(b.life).Sub(now)
	if b.using > 0 || b.paused {
		return left
	}
	return max(min(left, b.last.Add(b.idle).Sub(now)), 0)
}

// look ends it when its time has come.
func (b *Box) look() {
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
		b.timer.Reset(b.wait(now))
	}
	b.mu.Unlock()
	if why != "" && b.leave(why) {
		b.Sandbox.Close()
	}
}

// leave takes it out of the manager, and reports whether it was this that did.
func (b *Box) leave(why string) bool {
	m := b.manager
	m.mu.Lock()
	there := m.boxes[b.ID] == b
	if there {
		delete(m.boxes, b.ID)
		m.release(b)
	}
	owner := b.owner
	m.mu.Unlock()
	if !there {
		return false
	}
	b.mu.Lock()
	b.left = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	b.closePorts()
	m.o.Tell("sandbox.destroyed", Event{ID: b.ID, Owner: owner, Why: why})
	return true
}

// Use keeps it from ending for want of use until done is called.
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
			b.timer.Reset(b.wait(b.last))
		}
	})
}

// Facts are what is known of a sandbox at a moment.
type Facts struct {
	Busy      bool
	Paused    bool
	Calls     int       // made so far
	Processes int       // in the background, alive
	Contexts  int       // of code that goes on
	IdleAt    time.Time // when it ends unless it is used; while it is paused, when it ends in any case
	ExpiresAt time.Time // when it ends in any case
}

// Facts tells how it is.
func (b *Box) Facts() Facts {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := Facts{Busy: b.using > 0, Paused: b.paused, Calls: b.calls, Contexts: b.contexts.count(), IdleAt: b.last.Add(b.idle), ExpiresAt: b.Created.Add(b.life)}
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

// Files are its files; the error tells that it has none.
func (b *Box) Files() (sandbox.Files, error) {
	if f, ok := b.Sandbox.(sandbox.Files); ok {
		return f, nil
	}
	return nil, unsupported(b, "offer no files")
}

// Run runs a program to its end.
func (b *Box) Run(ctx context.Context, c sandbox.Command) (sandbox.Result, error) {
	p, err := b.Sandbox.Exec(ctx, c)
	if err != nil {
		return sandbox.Result{}, err
	}
	return p.Wait()
}

// forker is the interpreter that waits for code, or nil when there is none to
// be had before ctx ends. A waiting one whose limits are not those that hold is
// replaced.
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

// lasting reports whether what could not be started never can: that it was
// paused or has ended says nothing of it.
func (b *Box) lasting(err error) bool {
	return !errors.Is(err, sandbox.ErrPaused) && !errors.Is(err, sandbox.ErrClosed) && !b.Paused() && b.manager.life.Err() == nil
}

// starter is the Node that waits for code, or nil when there is none. The first
// to ask gets none: it has one started for those who come after it, because
// who runs JavaScript once will again, and who does not shall not pay for it.
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

// leastForNode is how many MiB of memory a sandbox has in which a Node waits,
// which takes some 40 of them.
const leastForNode = 128

// alike reports whether a process that was started under one set of limits is
// held to the other. What holds a sandbox as a whole changes with it.
func alike(a, b sandbox.Limits) bool {
	return a.Descriptors == b.Descriptors && a.Processes == b.Processes && a.DiskMiB == b.DiskMiB && a.MemoryMiB == b.MemoryMiB
}
