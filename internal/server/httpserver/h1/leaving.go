package h1

import (
	"context"
	"sync"
	"time"
)

// clientContext is the context of a request: it ends when the client leaves or the
// request has been answered. Unlike those of package context it costs next to
// nothing as long as no goroutine waits for its end.
type clientContext struct {
	// The parent, for its values. A leaving is itself a context.
	context.Context

	mu    sync.Mutex
	over  bool
	done  chan struct{} // made by the first call of Done
	after []*func()     // to be called at the end; nil where it was stopped
}

func (c *clientContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c *clientContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.over {
			close(c.done)
		}
	}
	return c.done
}

func (c *clientContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Canceled
	}
	return nil
}

// AfterFunc is what package context asks for instead of Done, so that no goroutine
// has to wait in a goroutine.
func (c *clientContext) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		go f()
		return func() bool { return false }
	}
	entry := &f
	c.after = append(c.after, entry)
	return func() bool { return c.removeHook(entry) }
}

func (c *clientContext) removeHook(entry *func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.after {
		if e == entry {
			c.after[i] = nil
			return true
		}
	}
	return false
}

// cancelContext ends the context, once.
func (c *clientContext) cancelContext() {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over = true
	if c.done != nil {
		close(c.done)
	}
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for _, f := range after {
		if f != nil {
			go (*f)()
		}
	}
}
