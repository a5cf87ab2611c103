package bus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Local is the bus within one process. Its zero value is not ready; use New.
type Local struct {
	// mu guards modules. It is separate from fmu, so that a request does not wait for an event that is being
	// published.
	mu      sync.RWMutex
	modules map[string]*endpoint

	// fmu guards followers and followed.
	fmu       sync.RWMutex
	followers map[*follower]struct{}
	followed  atomic.Pointer[map[string]bool] // cached answers of Followed; nil after the followers changed
}

// endpoint is one generation of one module, with the requests that run in it.
type endpoint struct {
	handle  Handler
	running atomic.Int64
	closing atomic.Bool
	idle    chan struct{}
	once    sync.Once
}

// New returns a bus without modules.
func New() *Local {
	return &Local{modules: make(map[string]*endpoint), followers: make(map[*follower]struct{})}
}

// Do runs the request on the calling goroutine.
func (b *Local) Do(ctx context.Context, r *Request, n Notes) (Outcome, error) {
	b.mu.RLock()
	s := b.modules[r.Module]
	if s != nil {
		s.running.Add(1) // under the lock, so that stop cannot miss it
	}
	b.mu.RUnlock()
	if s == nil {
		return Outcome{}, fmt.Errorf("module %s: %w", r.Module, ErrAbsent)
	}
	defer s.leave()
	return s.handle(ctx, r, n)
}

func (e *endpoint) leave() {
	if e.running.Add(-1) == 0 && e.closing.Load() {
		e.once.Do(func() { close(e.idle) })
	}
}

// Serve accepts requests for a module.
func (b *Local) Serve(module string, h Handler) (func(context.Context) error, error) {
	if module == "" || h == nil {
		return nil, errors.New("serve: a module needs a name and a handler")
	}
	s := &endpoint{handle: h, idle: make(chan struct{})}
	b.mu.Lock()
	b.modules[module] = s
	b.mu.Unlock()
	return func(ctx context.Context) error {
		b.mu.Lock()
		if b.modules[module] == s {
			delete(b.modules, module)
		}
		b.mu.Unlock()
		return s.drain(ctx)
	}, nil
}

func (e *endpoint) drain(ctx context.Context) error {
	e.closing.Store(true)
	if e.running.Load() == 0 {
		return nil
	}
	select {
	case <-e.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d calls still run: %w", e.running.Load(), context.Cause(ctx))
	}
}

// follower is one reader of events with its bounded queue.
type follower struct {
	pattern []string
	keep    int
	all     bool // also the events of other nodes

	mu    sync.Mutex
	facts []Event
	lost  int
	ready chan struct{} // holds a token while events wait
}

// Publish delivers an event to every follower of its subject.
func (b *Local) Publish(f Event) {
	b.fmu.RLock()
	defer b.fmu.RUnlock()
	if len(b.followers) == 0 {
		return
	}
	if f.At.IsZero() {
		f.At = time.Now()
	}
	for fo := range b.followers {
		if (f.Node == "" || fo.all) && matches(fo.pattern, f.Subject) {
			fo.enqueue(f)
		}
	}
}

// Followed reports whether an event of this subject has a follower, so that a publisher need not create one
// without.
func (b *Local) Followed(subject string) bool {
	if said := b.followed.Load(); said != nil {
		if yes, known := (*said)[subject]; known {
			return yes
		}
	}
	b.fmu.RLock()
	defer b.fmu.RUnlock()
	yes := false
	for fo := range b.followers {
		yes = yes || matches(fo.pattern, subject)
	}
	b.remember(subject, yes)
	return yes
}

// mostRemembered is how many subjects Followed caches.
const mostRemembered = 64

// remember caches whether a subject has followers. b.fmu must be held for reading, so that the followers cannot
// change meanwhile.
func (b *Local) remember(subject string, yes bool) {
	said := map[string]bool{subject: yes}
	if old := b.followed.Load(); old != nil && len(*old) < mostRemembered {
		maps.Copy(said, *old)
	}
	b.followed.Store(&said)
}

func (fo *follower) enqueue(f Event) {
	fo.mu.Lock()
	if len(fo.facts) >= fo.keep {
		fo.facts = fo.facts[1:]
		fo.lost++
	}
	if fo.lost > 0 && len(fo.facts) == 0 {
		f.Lost, fo.lost = fo.lost, 0
	}
	fo.facts = append(fo.facts, f)
	fo.mu.Unlock()
	select {
	case fo.ready <- struct{}{}:
	default:
	}
}

func (fo *follower) nextEvent() (Event, bool) {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	if len(fo.facts) == 0 {
		return Event{}, false
	}
	f := fo.facts[0]
	fo.facts = fo.facts[1:]
	if fo.lost > 0 {
		f.Lost, fo.lost = f.Lost+fo.lost, 0
	}
	return f, true
}

// Follow subscribes at once, not when the sequence is first read; the sequence may be read only once.
func (b *Local) Follow(ctx context.Context, pattern string, keep int) iter.Seq[Event] {
	return b.follow(ctx, pattern, keep, false)
}

// FollowAll is Follow for the events of all nodes.
func (b *Local) FollowAll(ctx context.Context, pattern string, keep int) iter.Seq[Event] {
	return b.follow(ctx, pattern, keep, true)
}

func (b *Local) follow(ctx context.Context, pattern string, keep int, all bool) iter.Seq[Event] {
	fo := &follower{pattern: strings.Split(pattern, "."), keep: max(keep, 1), all: all, ready: make(chan struct{}, 1)}
	b.fmu.Lock()
	b.followers[fo] = struct{}{}
	b.followed.Store(nil)
	b.fmu.Unlock()
	leave := func() {
		b.fmu.Lock()
		delete(b.followers, fo)
		b.followed.Store(nil)
		b.fmu.Unlock()
	}
	context.AfterFunc(ctx, leave)
	return func(yield func(Event) bool) {
		defer leave()
		for {
			if f, ok := fo.nextEvent(); ok {
				if !yield(f) {
					return
				}
				continue
			}
			select {
			case <-fo.ready:
			case <-ctx.Done():
				return
			}
		}
	}
}

// matches compares a subject with a pattern, part by part.
func matches(pattern []string, subject string) bool {
	for i, p := range pattern {
		if p == ">" && i == len(pattern)-1 {
			return subject != ""
		}
		if subject == "" {
			return false
		}
		part, rest, _ := strings.Cut(subject, ".")
		if p != "*" && p != part {
			return false
		}
		subject = rest
	}
	return subject == ""
}

var _ Bus = (*Local)(nil)
