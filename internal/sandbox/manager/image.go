package manager

import (
	"context"
	"sync"

	"gatehouse/internal/sandbox"
)

// lease keeps an image for those who use it. A nil one is of no image.
type lease struct {
	image   *sandbox.Image
	release func()

	mu    sync.Mutex
	users int
}

func (l *lease) add() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
}

func (l *lease) drop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.users--
	last := l.users == 0
	l.mu.Unlock()
	if last && l.release != nil {
		l.release()
	}
}

// imageOf makes an image ready; the caller drops the lease. What a template
// names is looked up once, so that all that is made of it, and what waits in
// its pool, is the same as long as the host runs.
func (m *Manager) imageOf(ctx context.Context, ref string, a Ask) (*lease, error) {
	if m.o.Image == nil {
		return nil, ErrNotOffered
	}
	if a.Image == "" {
		m.mu.Lock()
		l := m.images[ref]
		l.add()
		m.mu.Unlock()
		if l != nil {
			return l, nil
		}
	}
	image, release, err := m.o.Image(ctx, ref, a.Progress)
	if err != nil {
		return nil, err
	}
	l := &lease{image: image, release: release, users: 1}
	if a.Image != "" {
		return l, nil
	}
	m.mu.Lock()
	other := m.images[ref]
	switch {
	case other != nil: // somebody was faster
		other.add()
	case m.closed: // nobody would drop what the manager has
	default:
		l.users++ // the manager's
		m.images[ref] = l
	}
	m.mu.Unlock()
	if other != nil {
		l.drop()
		return other, nil
	}
	return l, nil
}
