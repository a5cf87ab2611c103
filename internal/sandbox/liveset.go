package sandbox

import (
	"errors"
	"io"
	"sync"
)

// LiveSet is the set of a driver's open sandboxes. The driver closes them all when it is closed. The zero value
// is empty. It is safe for concurrent use.
type LiveSet[S interface {
	comparable
	io.Closer
}] struct {
	mu     sync.Mutex
	all    map[S]struct{}
	closed bool
}

// ErrDriverClosed is returned by Create after the driver's Close.
var ErrDriverClosed = errors.New("the driver is closed")

// Add adds s. After CloseAll it returns ErrDriverClosed, and the caller must close s itself.
func (l *LiveSet[S]) Add(s S) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrDriverClosed
	}
	if l.all == nil {
		l.all = map[S]struct{}{}
	}
	l.all[s] = struct{}{}
	return nil
}

// Remove removes s, which has ended.
func (l *LiveSet[S]) Remove(s S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, s)
}

// CloseAll closes all sandboxes of the set concurrently. Later calls of Add fail.
func (l *LiveSet[S]) CloseAll() error {
	l.mu.Lock()
	l.closed = true
	left := make([]S, 0, len(l.all))
	for s := range l.all {
		left = append(left, s)
	}
	l.mu.Unlock()
	errs := make([]error, len(left))
	var each sync.WaitGroup
	for i, s := range left {
		each.Go(func() { errs[i] = s.Close() })
	}
	each.Wait()
	return errors.Join(errs...)
}
