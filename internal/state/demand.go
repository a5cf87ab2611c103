package state

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Demand is a live mount that holds its members only while a client
// reads or follows them, so that it costs nothing otherwise. The package that
// reads or follows a part of the tree in which the mount lies finds it filled;
// when the last subscription has gone and no client has read for a while, it is
// emptied. OnDemand makes one. Safe for concurrent use.
type Demand[E any] struct {
	to   *Mount[map[string]E]
	fill func() map[string]E
	idle time.Duration

	looked atomic.Bool // a client does; set before the members are looked up

	mu     sync.Mutex // taken before the mount's
	last   time.Time  // when the first client read it
	timer  *time.Timer
	filled bool
}

// demand is a Demand as the tree sees it.
type demand interface {
	// wake fills the mount, if it lies in the part at a pointer.
	wake(at Pointer)
}

// OnDemand makes the members of a mount be there on demand. fill gives them as
// they are; it is run while the mount cannot be written to, and must use
// neither the mount nor the tree. Once is called once, before the first read.
func OnDemand[E any](m *Mount[map[string]E], idle time.Duration, fill func() map[string]E) *Demand[E] {
	d := &Demand[E]{to: m, fill: fill, idle: idle}
	t := m.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []demand
	if old := t.demands.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, d)
	t.demands.Store(&all)
	return d
}

// Wanted reports whether changes are to be written. What happens after it has
// said no is in what fill gives later.
func (d *Demand[E]) Wanted() bool { return d.looked.Load() }

// wake fills what lies in the part at a pointer and is there on demand.
func (t *Tree) wake(at Pointer) {
	if all := t.demands.Load(); all != nil {
		for _, d := range *all {
			d.wake(at)
		}
	}
}

func (d *Demand[E]) wake(at Pointer) {
	if own := d.to.m.at; !own.Has(at) && !at.Has(own) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = time.Now()
	if d.filled {
		return
	}
	d.looked.Store(true)
	if d.setSource(d.fill) != nil { // the tree is closed, or a member is no value
		d.looked.Store(false)
		return
	}
	d.filled = true
	d.timer = time.AfterFunc(d.idle, d.rest)
}

func (d *Demand[E]) setSource(to func() map[string]E) error {
	_, err := d.to.Update(context.Background(), Any, func(v *map[string]E) error {
		*v = to()
		return nil
	})
	return err
}

// rest empties the mount when no client reads it any more.
func (d *Demand[E]) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if left := d.idle - time.Since(d.last); left > 0 {
		d.timer.Reset(left)
		return
	}
	if d.to.tree.followed(d.to.m.at) {
		d.timer.Reset(d.idle)
		return
	}
	d.looked.Store(false)
	d.filled = false
	d.setSource(func() map[string]E { return map[string]E{} }) // a closed tree has no readers
}

// followed reports whether a client follows a part of the tree in which a place
// lies, or one below it.
func (t *Tree) followed(place Pointer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.topics {
		if p.at.Has(place) || place.Has(p.at) {
			return true
		}
	}
	return false
}
