package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options configures a Tree. The zero value is a tree that stores nothing.
type Options struct {
	// Log stores the durable mounts; nil keeps them as long as the tree. The code that opened it closes it after
	// the tree.
	Log Log
	// Window is how long changes are collected, from the first one on, before a subscriber is notified; 0 means
	// 500 ms.
	Window time.Duration
	// Pending is the approximate number of bytes of changes that may wait for one subscriber, and that are kept
	// for readers that subscribe later. A subscriber that missed more must read again. 0 means 2 MiB.
	Pending int
	// Shared names the trees of the nodes of a cluster, whose revisions are equal if their contents are; "" means that
	// revisions are those of this tree alone.
	Shared string
	Logger *slog.Logger // nil means none
}

// Durability is whether a mount survives the end of the process.
type Durability uint8

const (
	Live    Durability = iota // it is lost
	Durable                   // it is in the Log
)

// These are the errors of mounts.
var (
	ErrMount   = errors.New("not a place for a mount")
	ErrMounted = errors.New("there is a mount already")
	ErrNoMount = errors.New("there is no such mount")
)

// Any is the expected revision of a change for which every revision is acceptable.
const Any = ^uint64(0)

// Tree is the document. It is safe for concurrent use.
type Tree struct {
	o     Options
	epoch string // distinguishes the revisions of this tree from those before a restart
	now   atomic.Pointer[moment]

	demands atomic.Pointer[[]demand] // mounts that are filled when a client reads them

	mu       sync.Mutex // of everything below; held for short, never while waiting for a log or a caller
	mounts   map[string]*mount
	topics   map[string]*topic
	subs     int
	past     []moment // earlier moments, the newest at the end
	pastSize int
	closed   bool

	// run is the context of Run, while it runs, because followers belong to no call.
	run     context.Context
	follows sync.WaitGroup
}

// moment is the tree between two changes. It is immutable.
type moment struct {
	root      any
	revisions map[*mount]uint64
	weight    int // approximate bytes that the change to it added and replaced
}

// mount is one place of the tree; it has one writer at a time.
type mount struct {
	at   Pointer
	name string // at, written
	log  Log    // nil for a live mount

	mu       sync.Mutex // held by the writer; taken before Tree.mu
	value    any
	revision uint64
}

// New returns a tree without mounts.
func New(o Options) *Tree {
	if o.Log == nil {
		o.Log = new(MemoryLog)
	}
	if o.Window == 0 {
		o.Window = 500 * time.Millisecond
	}
	if o.Pending == 0 {
		o.Pending = 2 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Tree{o: o, epoch: strings.ToLower(rand.Text()[:8]), mounts: map[string]*mount{}, topics: map[string]*topic{}}
	t.now.Store(&moment{root: map[string]any{"public": map[string]any{}, "private": map[string]any{}}})
	return t
}

// Run follows the changes that other processes make in the durable mounts, until ctx is done.
func (t *Tree) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.mu.Lock()
	t.run = ctx
	for _, m := range t.mounts {
		t.follow(m)
	}
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.run = nil
	t.mu.Unlock()
	t.follows.Wait()
	return nil
}

// follow starts to follow a mount while Run runs. t.mu must be held.
func (t *Tree) follow(m *mount) {
	ctx := t.run
	if ctx == nil || m.log == nil {
		return
	}
	t.follows.Go(func() {
		for ctx.Err() == nil {
			err := t.followOnce(ctx, m)
			if err == nil || errors.Is(err, ErrClosed) {
				return
			}
			t.o.Logger.Warn("a mount is not followed for a while", "mount", m.name, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
}

func (t *Tree) followOnce(ctx context.Context, m *mount) error {
	m.mu.Lock()
	from := m.revision
	m.mu.Unlock()
	for c, err := range m.log.Follow(ctx, m.name, from) {
		if err != nil {
			return err
		}
		m.mu.Lock()
		if c.Revision != m.revision {
			err = t.catchUp(ctx, m)
		}
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// catchUp applies the changes in the log of a mount that the tree does not have. m.mu must be held.
func (t *Tree) catchUp(ctx context.Context, m *mount) error {
	for c, err := range m.log.Follow(ctx, m.name, m.revision) {
		if err != nil {
			return err
		}
		if c.Revision == m.revision {
			return nil
		}
		v, err := Apply(m.value, c.Patch)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		t.publish(m, c.Revision, v)
		return nil
	}
	return context.Cause(ctx)
}

// CatchUp applies the changes in the logs of durable mounts that the tree does not have, for instance after a
// restore. Run does so on its own.
func (t *Tree) CatchUp(ctx context.Context) error {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.mounts))
	t.mu.Unlock()
	var errs []error
	for _, m := range all {
		if m.log == nil {
			continue
		}
		m.mu.Lock()
		errs = append(errs, t.catchUp(ctx, m))
		m.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Close ends all subscriptions; nothing can be changed any more. It is safe to call twice.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, p := range t.topics {
		for s := range p.subs {
			s.releaseSub()
		}
	}
	clear(t.topics)
	t.subs = 0
	return nil
}

// attach creates a mount with its value in the log.
func (t *Tree) attach(ctx context.Context, at string, d Durability, typ reflect.Type) (*mount, error) {
	p, err := ParsePointer(at)
	if err != nil {
		return nil, err
	}
	if len(p) < 2 || p[0] != "public" && p[0] != "private" {
		return nil, fmt.Errorf("%w: %q is not below /public or /private", ErrMount, at)
	}
	if p[0] == "public" && typ != nil && holdsSecret(typ) {
		return nil, fmt.Errorf("mount %s: %v holds a secret: %w", at, typ, ErrSecret)
	}
	m := &mount{at: p, name: p.String()}
	if d == Durable {
		m.log = t.o.Log
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := t.addMount(m); err != nil {
		return nil, err
	}
	if m.log != nil {
		if err := t.catchUp(ctx, m); err != nil {
			t.mu.Lock()
			delete(t.mounts, m.name)
			t.mu.Unlock()
			return nil, fmt.Errorf("mount %s: %w", at, err)
		}
	}
	t.mu.Lock()
	t.follow(m)
	t.mu.Unlock()
	return m, nil
}

// addMount registers a mount, unless another one is at its pointer, above it or below it.
func (t *Tree) addMount(m *mount) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	for _, other := range t.mounts {
		if other.at.Has(m.at) || m.at.Has(other.at) {
			return fmt.Errorf("%w: %s, where %s should be", ErrMounted, other.name, m.name)
		}
	}
	t.mounts[m.name] = m
	return nil
}

func (t *Tree) mount(at string) (*mount, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.mounts[at]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoMount, at)
}

// publish makes a new value of a mount visible to readers. m.mu must be held.
func (t *Tree) publish(m *mount, revision uint64, v any) {
	d := differ{}
	d.diff(m.value, v) // they share equal parts, so the cost depends on the change only
	m.value, m.revision = v, revision
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.now.Load()
	is := &moment{root: putAt(was.root, m.at, v), revisions: maps.Clone(was.revisions), weight: d.cost + d.old}
	if is.revisions == nil {
		is.revisions = map[*mount]uint64{}
	}
	is.revisions[m] = revision
	t.remember(*was, is.weight+d.held)
	t.now.Store(is)
	t.touch(was, is)
}

// putAt returns the tree with another value of a mount.
func putAt(v any, at Pointer, value any) any {
	if len(at) == 0 {
		return value
	}
	c, _ := v.(map[string]any) // between mounts there are objects only
	c = maps.Clone(c)
	if c == nil {
		c = map[string]any{}
	}
	c[at[0]] = putAt(c[at[0]], at[1:], value)
	return c
}

// pastMoments is how many earlier moments are kept at most.
const pastMoments = 256

// remember keeps the moment before a change for readers that subscribe later, and removes the oldest. t.mu must be
// held.
func (t *Tree) remember(was moment, weight int) {
	was.weight = weight // the cost of keeping it is the size of what the change removed
	t.past = append(t.past, was)
	t.pastSize += weight
	n := 0
	for n < len(t.past) && (len(t.past)-n > pastMoments || t.pastSize > t.o.Pending) {
		t.pastSize -= t.past[n].weight
		n++
	}
	if n > 0 {
		t.past = append([]moment(nil), t.past[n:]...)
	}
}

// Revision identifies a state of a part of the tree. It is opaque, but two equal revisions mean the same state.
type Revision string

// revision returns the revision of the part at a pointer: how often the mounts around and below it have changed.
func (t *Tree) revision(m *moment, at Pointer) Revision {
	var n uint64
	for x, r := range m.revisions {
		if x.at.Has(at) || at.Has(x.at) {
			n += r
		}
	}
	return Revision(t.epoch + "-" + strconv.FormatUint(n, 36))
}

// View is a part of the tree at one moment.
type View struct {
	Value    any  // as encoding/json would decode it, numbers as json.Number; not to be changed
	Found    bool // whether there is something at the pointer
	Revision Revision

	of Revision // of the whole part, whatever a Sight shows of it
}

// Mark returns the mark for a subscription of a client that was shown the view.
func (v View) Mark() Mark { return Mark{v.Revision, v.of} }

// JSON encodes the value, with the members of objects sorted by name.
func (v View) JSON() ([]byte, error) { return encodeValue(v.Value) }

// Read returns the part of the tree at a pointer. It does not wait, except that the first reader of a mount on
// demand fills it.
func (t *Tree) Read(at Pointer) View {
	t.wake(at)
	return t.view(t.now.Load(), at)
}

// See is Read for a reader that sees what sight shows; nil shows all. The revision of a restricted view is derived
// from its value.
func (t *Tree) See(at Pointer, sight Sight) View {
	t.wake(at)
	return t.seen(t.now.Load(), at, sight)
}

func (t *Tree) view(m *moment, at Pointer) View {
	v, ok := at.lookup(m.root)
	r := t.revision(m, at)
	if t.o.Shared != "" {
		return View{v, ok, t.contentRevision(v), r}
	}
	return View{v, ok, r, r}
}

// contentRevision returns the revision of a value that a reader is shown.
func (t *Tree) contentRevision(v any) Revision {
	b, _ := encodeValue(v) // which was decoded
	sum := sha256.Sum256(b)
	return Revision(cmp.Or(t.o.Shared, t.epoch) + "-v" + hex.EncodeToString(sum[:8]))
}

func (t *Tree) seen(m *moment, at Pointer, sight Sight) View {
	if sight == nil {
		return t.view(m, at)
	}
	v := View{of: t.revision(m, at)}
	v.Value, v.Found = sight(m.root)
	v.Revision = t.contentRevision(v.Value)
	return v
}
