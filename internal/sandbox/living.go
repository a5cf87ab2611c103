package sandbox

import (
	"errors"
	"io"
	"sync"
)

// Living are the sandboxes of a driver that are alive, so that none is left
// when the driver ends. The zero value has none. It is safe for concurrent use.
type Living[S interface {
	comparable
	io.Closer
}] struct {
	mu     sync.Mutex
	all    map[S]struct{}
	closed bool
}

// ErrDriverClosed is the answer to a Create after the driver's Close.
var ErrDriverClosed = errors.New("the driver is closed")

// Add takes one in. After CloseAll it is ErrDriverClosed, and the caller ends
// what it made.
func (l *Living[S]) Add(s S) error {
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

// Remove forgets one that has ended.
func (l *Living[S]) Remove(s S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, s)
}

// CloseAll closes those that are left, all at once, and takes in no more.
func (l *Living[S]) CloseAll() error {
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
