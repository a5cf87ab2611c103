package h1

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// clientWatch notices that the client closes the connection while its request is being answered. It
// reads from the connection, but only after a request has taken long, because most are answered before.
// Its zero value with nc set is ready.
type clientWatch struct {
	nc    net.Conn
	timer *time.Timer

	mu      sync.Mutex
	armed   bool           // the timer runs; it is not reset for each of many requests
	turn    uint64         // counts requests
	met     uint64         // the request for which the timer was set, or that it found when it fired
	on      bool           // a request is being answered
	client  *clientContext // of that request
	reading chan struct{}  // closed when the read has ended; nil if no read runs
	extra   byte           // the first byte of the next request
	has     bool           // extra is set
}

// begin is called at the start of a request, whose context client ends when the client closes the
// connection.
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

// tick starts to watch if it finds the same request twice. If it finds none, the next request sets the
// timer again.
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

// readAhead reads until a byte arrives, the client closes the connection, or stopWatch is called.
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

// keepsWatching handles an error of the read and cancels the request's context if the client has closed
// the connection. A timeout that stopWatch did not cause is due to a late sweep.
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

// seen returns the byte that arrived while a request was being answered.
func (c *clientWatch) seen() (byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := c.has
	c.has = false
	return c.extra, has
}
