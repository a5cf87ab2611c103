package state

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Demand is a live mount that holds its members only while a client reads or follows them, so that it costs
// nothing otherwise. A client that reads or follows a part of the tree that contains the mount finds it filled.
// When the last subscription has ended and no client has read it for a while, it is emptied. OnDemand creates one.
// It is safe for concurrent use.
type Demand[E any] struct {
	to   *Mount[map[string]E]
	fill func() map[string]E
	idle time.Duration

	looked atomic.Bool // a client reads or follows; set before the members are listed

	mu     sync.Mutex // taken before the mount's
	last   time.Time  // when the first client read it
	timer  *time.Timer
	filled bool
}

// demand is a Demand without its type parameter.
type demand interface {
	// wake fills the mount, if it is in the part at a pointer.
	wake(at Pointer)
}

// OnDemand fills the members of a mount on demand. fill returns the current members; it runs while the mount
// cannot be written to, and must use neither the mount nor the tree. OnDemand must be called once for a mount,
// before the first read.
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

// Wanted reports whether changes should be written. Changes after it returned false are part of what fill returns
// later.
func (d *Demand[E]) Wanted() bool { return d.looked.Load() }

// Refresh lists the members again, if a client reads or follows them. Call it after they have changed.
func (d *Demand[E]) Refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.filled {
		return nil
	}
	return d.setSource(d.fill)
}

// wake fills the mounts on demand in the part at a pointer.
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
	if d.setSource(d.fill) != nil { // the tree is closed, or a member is not a value
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

// rest empties the mount if no client reads it any more.
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

// followed reports whether a client follows a part of the tree that contains a place, or one below it.
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
