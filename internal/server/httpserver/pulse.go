package httpserver

import (
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/server/httpserver/hangup"
)

// keepAlive keeps open streams alive: one timer for all of them, which runs only while streams are
// open.
type keepAlive struct {
	every   time.Duration  // half of the longest silence
	leaving atomic.Bool    // streams end as soon as they are idle
	hangups hangup.Watcher // of the clients of streams that were taken over

	mu    sync.Mutex
	wires map[*wire]struct{}
	timer *time.Timer
}

func (k *keepAlive) addWire(w *wire) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wires == nil {
		k.wires = make(map[*wire]struct{})
	}
	k.wires[w] = struct{}{}
	if k.timer == nil {
		k.timer = time.AfterFunc(k.every, k.beat)
	}
}

func (k *keepAlive) removeWire(w *wire) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.wires, w)
	if len(k.wires) == 0 {
		k.wires = nil // because a map never shrinks
	}
}

// all returns the open streams.
func (k *keepAlive) all() []*wire {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]*wire, 0, len(k.wires))
	for w := range k.wires {
		all = append(all, w)
	}
	return all
}

func (k *keepAlive) wireCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.wires)
}

func (k *keepAlive) beat() {
	for _, w := range k.all() {
		w.beat()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.wires) == 0 {
		k.timer = nil
		return
	}
	k.timer.Reset(k.every)
}

// dismissAll ends the streams that are idle, and from now on each that becomes idle.
func (k *keepAlive) dismissAll() {
	k.leaving.Store(true)
	k.each((*wire).dismiss)
}

// each calls f for every open stream, several at a time so that the waiting times of blocked ones do
// not add up.
func (k *keepAlive) each(f func(*wire)) {
	var workers sync.WaitGroup
	work := make(chan *wire)
	for range 16 {
		workers.Go(func() {
			for w := range work {
				f(w)
			}
		})
	}
	for _, w := range k.all() {
		work <- w
	}
	close(work)
	workers.Wait()
}
