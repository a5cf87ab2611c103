package httpserver

import (
	"sync"
	"time"
)

// pulse keeps open streams alive: one timer for all of them, which runs only
// while there are any.
type pulse struct {
	every time.Duration // half of the longest silence

	mu    sync.Mutex
	wires map[*wire]struct{}
	timer *time.Timer
}

func (p *pulse) add(w *wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wires == nil {
		p.wires = make(map[*wire]struct{})
	}
	p.wires[w] = struct{}{}
	if p.timer == nil {
		p.timer = time.AfterFunc(p.every, p.beat)
	}
}

func (p *pulse) remove(w *wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.wires, w)
	if len(p.wires) == 0 {
		p.wires = nil // a map keeps the room of its largest day
	}
}

// all is the open streams of this moment.
func (p *pulse) all() []*wire {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*wire, 0, len(p.wires))
	for w := range p.wires {
		all = append(all, w)
	}
	return all
}

func (p *pulse) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.wires)
}

func (p *pulse) beat() {
	for _, w := range p.all() {
		w.beat()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wires) == 0 {
		p.timer = nil
		return
	}
	p.timer.Reset(p.every)
}

// each calls f for every open stream, several at a time so that those that
// are stuck do not add up.
func (p *pulse) each(f func(*wire)) {
	var workers sync.WaitGroup
	work := make(chan *wire)
	for range 16 {
		workers.Go(func() {
			for w := range work {
				f(w)
			}
		})
	}
	for _, w := range p.all() {
		work <- w
	}
	close(work)
	workers.Wait()
}
