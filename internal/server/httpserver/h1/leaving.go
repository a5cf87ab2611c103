package h1

import (
	"context"
	"sync"
	"time"
)

// clientContext is the context of a request: it ends when the client closes the connection or the
// request has been answered. In contrast to package context it allocates nothing until a goroutine
// waits for its end.
type clientContext struct {
	// The parent, for its values.
	context.Context

	mu    sync.Mutex
	over  bool
	done  chan struct{} // created by the first call of Done
	after []*func()     // called at the end; nil if it was stopped
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

// AfterFunc is the method that package context uses instead of Done, so that it needs no goroutine of
// its own to wait.
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
