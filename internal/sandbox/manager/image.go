package manager

import (
	"context"
	"sync"

	"gatehouse/internal/sandbox"
)

// imageRef keeps an image while it has users. A nil lease stands for no image.
type imageRef struct {
	image   *sandbox.Image
	release func()

	mu    sync.Mutex
	users int
}

func (i *imageRef) retain() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.users++
}

func (i *imageRef) drop() {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.users--
	last := i.users == 0
	i.mu.Unlock()
	if last && i.release != nil {
		i.release()
	}
}

// imageOf prepares an image; the caller must drop the lease. The image of a template is looked up once, so
// that all its sandboxes, including those in its pool, use the same one as long as the host runs.
func (m *Manager) imageOf(ctx context.Context, ref string, a Spec) (*imageRef, error) {
	if m.o.Image == nil {
		return nil, ErrNotOffered
	}
	if a.Image == "" {
		m.mu.Lock()
		l := m.images[ref]
		l.retain()
		m.mu.Unlock()
		if l != nil {
			return l, nil
		}
	}
	image, release, err := m.o.Image(ctx, ref, a.Progress)
	if err != nil {
		return nil, err
	}
	l := &imageRef{image: image, release: release, users: 1}
	if a.Image != "" {
		return l, nil
	}
	m.mu.Lock()
	other := m.images[ref]
	switch {
	case other != nil: // another call was faster
		other.retain()
	case m.closed: // no one would drop the manager's reference
	default:
		l.users++ // the manager's reference
		m.images[ref] = l
	}
	m.mu.Unlock()
	if other != nil {
		l.drop()
		return other, nil
	}
	return l, nil
}
