package h1

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// watch notices that the client leaves while its request is being answered.
// It reads from the connection, but only once a request takes long: most are
// answered before. Its zero value with nc set is ready.
type watch struct {
	nc    net.Conn
	timer *time.Timer

	mu      sync.Mutex
	armed   bool          // the timer runs; it is not set anew for each of many requests
	turn    uint64        // counts requests
	met     uint64        // the request that the timer was set for, or found when it fired
	on      bool          // a request is being answered
	client  *leaving      // of that request
	reading chan struct{} // closed when the read has ended; nil: there is none
	extra   byte          // the first byte of the next request
	has     bool          // there is one
}

// begin is called when a request begins, whose context ends when the client
// goes.
func (w *watch) begin(client *leaving) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.client = true, client
	w.turn++
	if w.armed {
		return
	}
	w.armed, w.met = true, w.turn
	if w.timer == nil {
		w.timer = time.AfterFunc(watchAfter, w.tick)
	} else {
		w.timer.Reset(watchAfter)
	}
}

// tick begins to watch once it finds the same request twice. When it finds
// none, the next one sets the timer again.
func (w *watch) tick() {
	w.mu.Lock()
	if w.on && w.met != w.turn {
		w.met = w.turn
		w.timer.Reset(watchAfter)
		w.mu.Unlock()
		return
	}
	w.armed = false
	w.mu.Unlock()
	w.look()
}

// look reads until something comes, the client goes, or end is called.
func (w *watch) look() {
	w.mu.Lock()
	if !w.on || w.has || w.reading != nil {
		w.mu.Unlock()
		return
	}
	done := make(chan struct{})
	w.reading = done
	w.mu.Unlock()
	defer close(done)
	var one [1]byte
	for {
		n, err := w.nc.Read(one[:])
		if n == 1 {
			w.mu.Lock()
			w.extra, w.has = one[0], true
			w.mu.Unlock()
			return
		}
		if !w.goOn(err) {
			return
		}
	}
}

// goOn looks at an error of the read and tells the request if the client is
// gone. A deadline that end did not set is a late sweep's.
func (w *watch) goOn(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.on {
		return false
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.nc.SetReadDeadline(time.Time{})
		return true
	}
	w.client.end()
	return false
}

// end stops watching. It may be called more than once for a request.
func (w *watch) end() {
	w.mu.Lock()
	was, reading := w.on, w.reading
	w.on, w.client = false, nil
	w.mu.Unlock()
	if !was {
		return
	}
	if reading == nil {
		return
	}
	w.nc.SetReadDeadline(aLongTimeAgo)
	<-reading
	w.nc.SetReadDeadline(time.Time{})
	w.mu.Lock()
	w.reading = nil
	w.mu.Unlock()
}

// seen takes the byte that came while a request was being answered.
func (w *watch) seen() (byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	has := w.has
	w.has = false
	return w.extra, has
}
