package state

import (
	"context"
	"iter"
	"sync"
)

// memoryKept is how many changes of a mount a MemoryLog can yield one by one.
const memoryKept = 1024

// MemoryLog is a log that lasts as long as its process. The zero value is usable.
type MemoryLog struct {
	mu     sync.Mutex
	mounts map[string]*remembered
}

// remembered is one mount: its value, and the last changes.
type remembered struct {
	value    any
	revision uint64
	last     []Patch       // the newest at the end
	changed  chan struct{} // closed with the next change
}

func (l *MemoryLog) mount(name string) *remembered {
	m := l.mounts[name]
	if m == nil {
		if l.mounts == nil {
			l.mounts = make(map[string]*remembered)
		}
		m = &remembered{changed: make(chan struct{})}
		l.mounts[name] = m
	}
	return m
}

// Append implements Log. A patch that does not fit the value is an ErrPatch.
func (l *MemoryLog) Append(ctx context.Context, mount string, expected uint64, p Patch) (uint64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if _, err := encodePatch(p); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mount(mount)
	if m.revision != expected {
		return 0, &Conflict{mount, m.revision}
	}
	v, err := Apply(m.value, p)
	if err != nil {
		return 0, err
	}
	m.value = v
	m.revision++
	if len(m.last) == memoryKept {
		m.last = append([]Patch(nil), m.last[memoryKept/2:]...)
	}
	m.last = append(m.last, p)
	close(m.changed)
	m.changed = make(chan struct{})
	return m.revision, nil
}

// since returns the change from a revision to the current one, and a channel that is closed at the next change.
func (l *MemoryLog) since(mount string, from uint64) (Change, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mount(mount)
	c := Change{Revision: m.revision}
	switch kept := uint64(len(m.last)); {
	case from > m.revision, m.revision-from > kept:
		c.Patch = replaceAll(m.value)
	default:
		c.Patch = concat(m.last[kept-(m.revision-from):])
	}
	return c, m.changed
}

// Follow implements Log.
func (l *MemoryLog) Follow(ctx context.Context, mount string, from uint64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for {
			c, changed := l.since(mount, from)
			if !yield(c, nil) {
				return
			}
			from = c.Revision
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}
