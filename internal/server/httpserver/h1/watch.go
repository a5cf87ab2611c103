package h1

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// clientWatch notices that the client leaves while its request is being answered.
// It reads from the connection, but only once a request takes long: most are
// answered before. Its zero value with nc set is ready.
type clientWatch struct {
	nc    net.Conn
	timer *time.Timer

	mu      sync.Mutex
	armed   bool           // the timer runs; it is not set anew for each of many requests
	turn    uint64         // counts requests
	met     uint64         // the request that the timer was set for, or found when it fired
	on      bool           // a request is being answered
	client  *clientContext // of that request
	reading chan struct{}  // closed when the read has ended; nil: there is none
	extra   byte           // the first byte of the next request
	has     bool           // there is one
}

// begin is called when a request begins, whose context ends when the client
// goes.
func (c *clientWatch) begin(client *clientContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on, c.client = true, client
	c.turn++
	if c.armed {
		return
	}
	c.armed, c.met = true, c.turn
	if c.timer == nil {
		c.timer = time.AfterFunc(watchAfter, c.tick)
	} else {
		c.timer.Reset(watchAfter)
	}
}

// tick begins to watch once it finds the same request twice. When it finds
// none, the next one sets the timer again.
func (c *clientWatch) tick() {
	c.mu.Lock()
	if c.on && c.met != c.turn {
		c.met = c.turn
		c.timer.Reset(watchAfter)
		c.mu.Unlock()
		return
	}
	c.armed = false
	c.mu.Unlock()
	c.readAhead()
}

// readAhead reads until something comes, the client goes, or end is called.
func (c *clientWatch) readAhead() {
	c.mu.Lock()
	if !c.on || c.has || c.reading != nil {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.reading = done
	c.mu.Unlock()
	defer close(done)
	var one [1]byte
	for {
		n, err := c.nc.Read(one[:])
		if n == 1 {
			c.mu.Lock()
			c.extra, c.has = one[0], true
			c.mu.Unlock()
			return
		}
		if !c.keepsWatching(err) {
			return
		}
	}
}

// keepsWatching looks at an error of the read and tells the request if the client is
// gone. A deadline that end did not set is a late sweep's.
func (c *clientWatch) keepsWatching(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return false
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.nc.SetReadDeadline(time.Time{})
		return true
	}
	c.client.cancelContext()
	return false
}

// stopWatch stops watching. It may be called more than once for a request.
func (c *clientWatch) stopWatch() {
	c.mu.Lock()
	was, reading := c.on, c.reading
	c.on, c.client = false, nil
	c.mu.Unlock()
	if !was {
		return
	}
	if reading == nil {
		return
	}
	c.nc.SetReadDeadline(aLongTimeAgo)
	<-reading
	c.nc.SetReadDeadline(time.Time{})
	c.mu.Lock()
	c.reading = nil
	c.mu.Unlock()
}

// seen takes the byte that came while a request was being answered.
func (c *clientWatch) seen() (byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.has
	c.has = false
	return c.extra, has
}
