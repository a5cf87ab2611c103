package protocol

import (
	"sync"
	"time"
)

// crew counts the goroutines of the engine, so that it can wait for them.
type crew struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go runs f. What comes after Wait finds its context ended and is not waited
// for.
func (c *crew) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		go f()
		return
	}
	c.wg.Go(f)
}

// Wait waits for what runs, and reports false when that takes too long.
func (c *crew) Wait(limit time.Duration) bool {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
