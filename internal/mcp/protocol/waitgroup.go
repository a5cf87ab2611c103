package protocol

import (
	"sync"
	"time"
)

// waitGroup counts the engine's goroutines, so that Run can wait for them with a time
// limit.
type waitGroup struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go runs f on a new goroutine. Wait does not wait for functions that are started after
// it; their context has ended.
func (c *waitGroup) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		go f()
		return
	}
	c.wg.Go(f)
}

// Wait waits for the running functions. It returns false if they run longer than limit.
func (c *waitGroup) Wait(limit time.Duration) bool {
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
