package state

import (
	"context"
	"errors"
	"sync"
	"time"
)

// mostSubs is how many subscriptions a tree accepts at once.
const mostSubs = 100_000

// ErrFull is the error of one subscription too many.
var ErrFull = errors.New("too many subscriptions")

// Update is a change that a subscriber receives: it leads from one state of its part of the tree to another. If
// there is no value at the pointer, the part counts as null.
type Update struct {
	From     Revision // the state before, which was sent or shown last
	Revision Revision // the state after
	Patch    Patch    // relative to the pointer; empty only after Flush
	// Again means that too much has changed for a patch: read the part again.
	Again bool
}

// Sub is a subscription to a part of the tree. Next and Take must be called by one goroutine at a time, the other
// methods by any.
type Sub struct {
	t     *Tree
	at    Pointer
	sight Sight // nil for one that sees the whole part
	topic *topic
	wake  chan struct{} // holds a token when Next has a reason to check
	ended chan struct{}
	known Revision // of the last Update; Next's own

	// Tree.mu guards the fields below.
	ready  func() // called when Take may have an Update; may be nil
	base   any    // the part as it was last sent
	lost   bool   // base was dropped
	weight int    // of the changes since
	dirty  bool   // something has changed
	ripe   bool   // and the window has ended
	flush  bool   // send an Update even if nothing has changed
	window *time.Timer
	opened int // counts windows, so that the end of an earlier one does nothing
}

// topic is a part of the tree with followers.
type topic struct {
	at   Pointer
	subs map[*Sub]struct{}

	mu   sync.Mutex // of last
	last difference
}

// difference is the patch between two values that subscribers of one part received last. It is cached, because
// many of them receive the same.
type difference struct {
	old, now any
	ops      Patch
	cost     int
}

// A Sight returns the part of the tree that one subscriber follows, as far as it may see it. It receives the whole
// tree at one moment and must not change it. It is called without locks held and may return another result later.
type Sight func(root any) (value any, found bool)

// Mark identifies what a reader was shown, so that a subscription can begin there. The zero Mark means the moment
// of the subscription.
type Mark struct {
	shown Revision // as the reader received it
	at    Revision // of the part as a whole
}

// Unknown is the Mark of a reader if it is not known what it was shown: its first Update has Again set.
var Unknown = Mark{"?", "?"}

// Subscribe is Follow for a subscriber that sees the whole part, from a revision of it that it has seen; "" means
// from now on.
func (t *Tree) Subscribe(at Pointer, from Revision) (s *Sub, now View, err error) {
	return t.Follow(at, Mark{from, from}, nil)
}

// Follow follows the part of the tree at a pointer, as sight shows it, from what a reader was shown. now is the
// current part, and the subscriber is notified of every change after it. If the part is at another revision than
// from, that counts as a change of this moment. If the changes since from are not known any more, or sight now
// shows another value of it, the first Update has Again set. The error is ErrFull or ErrClosed.
func (t *Tree) Follow(at Pointer, from Mark, sight Sight) (s *Sub, now View, err error) {
	t.wake(at)
	t.mu.Lock()
	switch {
	case t.closed:
		t.mu.Unlock()
		return nil, View{}, ErrClosed
	case t.subs >= mostSubs:
		t.mu.Unlock()
		return nil, View{}, ErrFull
	}
	m := t.now.Load()
	s = &Sub{t: t, at: at, sight: sight, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	name := at.String()
	s.topic = t.topics[name]
	if s.topic == nil {
		s.topic = &topic{at: at, subs: map[*Sub]struct{}{}}
		t.topics[name] = s.topic
	}
	s.topic.subs[s] = struct{}{}
	t.subs++
	var then *moment
	if from.at != "" {
		then = t.moment(at, from.at)
	}
	t.mu.Unlock()

	now = t.seen(m, at, sight)
	was := now
	if from.shown != "" && from.shown != now.Revision {
		if was = (View{}); then != nil {
			was = t.seen(then, at, sight)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.known = now.Revision; from.shown != "" {
		s.known = from.shown
	}
	if s.lost = s.lost || was.Revision != s.known; !s.lost {
		s.base = was.Value
	}
	if s.known != now.Revision && !s.dirty {
		s.openSub()
	}
	return s, now, nil
}

// moment returns the moment at which a part of the tree was at a revision, or nil if it is not kept. t.mu must be
// held.
func (t *Tree) moment(at Pointer, r Revision) *moment {
	if now := t.now.Load(); t.revision(now, at) == r {
		return now
	}
	for i := len(t.past) - 1; i >= 0; i-- {
		if t.revision(&t.past[i], at) == r {
			m := t.past[i]
			return &m
		}
	}
	return nil
}

// touch wakes the subscribers of the parts that a change has affected. Two moments share their unchanged parts, so
// one comparison for each part is enough, whatever the size of the change. t.mu must be held.
func (t *Tree) touch(was, is *moment) {
	for _, p := range t.topics {
		old, _ := p.at.lookup(was.root)
		now, _ := p.at.lookup(is.root)
		if same(old, now) {
			continue
		}
		weight := is.weight
		if small := size(old, weight) + size(now, weight); small < weight {
			weight = small
		}
		for s := range p.subs {
			s.touched(weight)
		}
	}
}

func (s *Sub) touched(weight int) {
	if s.weight += weight; s.weight > s.t.o.Pending && !s.lost {
		s.lost, s.base = true, nil
	}
	if !s.dirty {
		s.openSub()
	}
}

// openSub starts a window. t.mu must be held.
func (s *Sub) openSub() {
	s.dirty = true
	s.opened++
	opened := s.opened
	s.window = time.AfterFunc(s.t.o.Window, func() {
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		if s.opened == opened && s.dirty {
			s.ripen()
		}
	})
}

// Look compares the part with what was sent last, as after a change, because what a Sight shows may depend on more
// than the tree.
func (s *Sub) Look() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	select {
	case <-s.ended:
	default:
		s.touched(0)
	}
}

// OnReady sets a function that is called whenever Take may have an Update. f must return at once and not use the
// tree, because the tree is locked.
func (s *Sub) OnReady(f func()) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.ready = f; s.ripe {
		f()
	}
}

// ripen ends the window, so that Next returns the Update. t.mu must be held.
func (s *Sub) ripen() {
	s.ripe = true
	if s.ready != nil {
		s.ready()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Flush ends the window at once. With always, Next then returns an Update even if nothing has changed, so that the
// subscriber knows the revision.
func (s *Sub) Flush(always bool) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if always || s.dirty {
		s.flush = s.flush || always
		s.ripen()
	}
}

// Next waits for an Update. The error is ErrClosed after Close, or the cause of ctx. Changes that arrive meanwhile
// are merged: a slow follower gets fewer and larger updates, or one with Again set.
func (s *Sub) Next(ctx context.Context) (Update, error) {
	for {
		select {
		case <-s.ended:
			return Update{}, ErrClosed
		default:
		}
		if u, ok := s.Take(); ok {
			return u, nil
		}
		select {
		case <-s.wake:
		case <-s.ended:
		case <-ctx.Done():
			return Update{}, context.Cause(ctx)
		}
	}
}

// Take returns the Update of a window that has ended, if there is one.
func (s *Sub) Take() (u Update, ok bool) {
	s.t.mu.Lock()
	if !s.ripe {
		s.t.mu.Unlock()
		return u, false
	}
	m := s.t.now.Load()
	old, lost, flush := s.base, s.lost, s.flush
	s.lost, s.dirty, s.ripe, s.flush, s.weight = false, false, false, false, 0
	if s.window != nil {
		s.window.Stop()
		s.window = nil
	}
	s.t.mu.Unlock()

	now := s.t.seen(m, s.at, s.sight)
	s.t.mu.Lock()
	if !s.lost { // too much may have changed meanwhile
		s.base = now.Value
	}
	s.t.mu.Unlock()
	u = Update{From: s.known, Revision: now.Revision, Again: lost}
	if !lost {
		d := s.topic.difference(old, now.Value)
		if u.Patch = d.ops; d.cost > s.t.o.Pending {
			u.Patch, u.Again = nil, true
		}
		if len(d.ops) == 0 && !flush {
			// The change was undone, or the subscriber cannot see it. The revision of the whole part may have
			// changed nevertheless.
			return Update{}, false
		}
	}
	s.known = u.Revision
	return u, true
}

// difference returns the patch from one value to another.
func (p *topic) difference(old, now any) difference {
	p.mu.Lock()
	last := p.last
	p.mu.Unlock()
	if last.ops != nil && same(last.old, old) && same(last.now, now) {
		return last
	}
	d := differ{}
	d.diff(old, now)
	last = difference{old, now, d.ops, d.cost}
	p.mu.Lock()
	p.last = last
	p.mu.Unlock()
	return last
}

// Close ends the subscription and frees its memory. It is safe to call twice.
func (s *Sub) Close() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	name := s.at.String()
	p := s.t.topics[name]
	if p == nil {
		return
	}
	if _, there := p.subs[s]; !there {
		return
	}
	delete(p.subs, s)
	s.t.subs--
	if len(p.subs) == 0 {
		delete(s.t.topics, name)
	}
	s.releaseSub()
}

// releaseSub frees the memory of a subscription. t.mu must be held.
func (s *Sub) releaseSub() {
	close(s.ended)
	s.base, s.dirty, s.ripe, s.ready = nil, false, false, nil
	if s.window != nil {
		s.window.Stop()
		s.window = nil
	}
}
