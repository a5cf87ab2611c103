package state

import (
	"context"
	"errors"
	"time"
)

// mostSubs are how many subscriptions a tree bears at once.
const mostSubs = 100_000

// ErrFull is the answer to one subscription too many.
var ErrFull = errors.New("too many subscriptions")

// Update is what a subscriber is told: what leads from one state of its part
// of the tree to another. Where there is nothing at the pointer the part
// counts as null.
type Update struct {
	From     Revision // the state before; what was told or shown last
	Revision Revision // the state after
	Patch    Patch    // relative to the pointer; empty only after Flush
	// Again says that too much has changed for a patch: read the part again.
	Again bool
}

// Sub is a subscription to a part of the tree. Next is for one goroutine at a
// time, the other methods for all.
type Sub struct {
	t     *Tree
	at    Pointer
	wake  chan struct{} // holds a token when Next has a reason to look
	ended chan struct{}
	known Revision // of the last Update; Next's own

	// Guarded by Tree.mu.
	base   any  // the part as it was last told
	lost   bool // base was given up
	weight int  // of the changes since
	dirty  bool // something has changed
	ripe   bool // and it is time to tell
	flush  bool // even if nothing has
	window *time.Timer
	opened int // counts windows, so that the end of an earlier one does nothing
}

// topic is a part of the tree that somebody follows.
type topic struct {
	at   Pointer
	subs map[*Sub]struct{}
}

// Subscribe follows the part of the tree at a pointer, from a revision of it
// that was seen before; "" means from now on. now is the part as it is, and
// no change after it goes untold. If it is at another revision than from, that
// counts as a change of this moment, and where it is not known any more what
// has become of the part since, the first Update says Again. The error is
// ErrFull or ErrClosed.
func (t *Tree) Subscribe(at Pointer, from Revision) (s *Sub, now View, err error) {
	t.wake(at)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, View{}, ErrClosed
	case t.subs >= mostSubs:
		return nil, View{}, ErrFull
	}
	now = t.view(t.now.Load(), at)
	s = &Sub{t: t, at: at, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	s.base, s.known = now.Value, now.Revision
	name := at.String()
	p := t.topics[name]
	if p == nil {
		p = &topic{at, map[*Sub]struct{}{}}
		t.topics[name] = p
	}
	p.subs[s] = struct{}{}
	t.subs++
	if from != "" && from != now.Revision {
		s.resume(from)
	}
	return s, now, nil
}

// resume takes a subscription back to a revision. t.mu is held.
func (s *Sub) resume(from Revision) {
	s.known = from
	s.lost, s.base = true, nil
	for i := len(s.t.past) - 1; i >= 0; i-- {
		if m := &s.t.past[i]; s.t.revision(m, s.at) == from {
			s.base, _ = s.at.lookup(m.root)
			s.lost = false
			break
		}
	}
	s.open()
}

// touch tells the subscribers of what a change has touched. Unchanged parts of
// two moments are one and the same, so a part costs a look whatever the size
// of the change. t.mu is held.
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
		s.open()
	}
}

// open opens a window. t.mu is held.
func (s *Sub) open() {
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

// ripen lets Next tell what there is. t.mu is held.
func (s *Sub) ripen() {
	s.ripe = true
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Flush ends the window at once. With always, Next then gives an Update even if
// nothing has changed, so that the revision is known.
func (s *Sub) Flush(always bool) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if always || s.dirty {
		s.flush = s.flush || always
		s.ripen()
	}
}

// Next waits for an Update. The error is ErrClosed after Close, or the cause
// of ctx. Changes that come meanwhile are put together: whoever is slow gets
// fewer and larger updates, or one that says Again.
func (s *Sub) Next(ctx context.Context) (Update, error) {
	for {
		select {
		case <-s.ended:
			return Update{}, ErrClosed
		default:
		}
		if u, ok := s.take(); ok {
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

// take makes the Update of a window that is over.
func (s *Sub) take() (u Update, ok bool) {
	s.t.mu.Lock()
	if !s.ripe {
		s.t.mu.Unlock()
		return u, false
	}
	now := s.t.view(s.t.now.Load(), s.at)
	old, lost, flush := s.base, s.lost, s.flush
	s.base = now.Value
	s.lost, s.dirty, s.ripe, s.flush, s.weight = false, false, false, false, 0
	if s.window != nil {
		s.window.Stop()
		s.window = nil
	}
	s.t.mu.Unlock()

	u = Update{From: s.known, Revision: now.Revision, Again: lost}
	if !lost {
		d := differ{}
		d.diff(old, now.Value)
		if u.Patch = d.ops; d.cost > s.t.o.Pending {
			u.Patch, u.Again = nil, true
		}
		if len(d.ops) == 0 && !flush {
			return Update{}, false // what was changed was changed back
		}
	}
	s.known = u.Revision
	return u, true
}

// Close ends the subscription and frees what it holds; safe to call twice.
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
	s.end()
}

// end lets go of everything. t.mu is held.
func (s *Sub) end() {
	close(s.ended)
	s.base, s.dirty, s.ripe = nil, false, false
	if s.window != nil {
		s.window.Stop()
		s.window = nil
	}
}
