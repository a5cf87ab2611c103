package h1

import (
	"context"
	"sync"
	"time"
)

// leaving is the context of a request: it ends when the client leaves or the
// request has been answered. Unlike those of package context it costs next to
// nothing as long as no goroutine waits for its end.
type leaving struct {
	// The parent, for its values. A leaving is itself a context.
	context.Context

	mu    sync.Mutex
	over  bool
	done  chan struct{} // made by the first call of Done
	after []*func()     // to be called at the end; nil where it was stopped
}

func (l *leaving) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *leaving) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.over {
			close(l.done)
		}
	}
	return l.done
}

func (l *leaving) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return context.Canceled
	}
	return nil
}

// AfterFunc is what package context asks for instead of Done, so that no goroutine
// has to wait in a goroutine.
func (l *leaving) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		go f()
		return func() bool { return false }
	}
	entry := &f
	l.after = append(l.after, entry)
	return func() bool { return l.stop(entry) }
}

func (l *leaving) stop(entry *func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.after {
		if e == entry {
			l.after[i] = nil
			return true
		}
	}
	return false
}

// end ends the context, once.
func (l *leaving) end() {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return
	}
	l.over = true
	if l.done != nil {
		close(l.done)
	}
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, f := range after {
		if f != nil {
			go (*f)()
		}
	}
}
