// Package delayed passes on what a call prints while it runs, once it is known
// that the call takes long or prints much: what is short is in the result, and
// needs neither progress nor a resource.
package delayed

import (
	"io"
	"sync"
	"time"
)

const (
	enough = 32 << 10               // bytes that are held back
	soon   = 500 * time.Millisecond // how long they are
)

// Feed is a Writer between the writers and the receiver of the output. It is safe for
// concurrent use; writing to it never fails.
type Feed struct {
	to    io.Writer
	timer *time.Timer

	mu     sync.Mutex
	opened bool
	held   []byte
}

// To makes a feed that passes on to w, whose errors are of no interest. The caller who
// makes one calls Close when the call has ended.
func To(w io.Writer) *Feed {
	f := &Feed{to: w}
	f.timer = time.AfterFunc(soon, f.openWriter)
	return f
}

// Write takes all of b, in the order of the calls.
func (f *Feed) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opened && len(f.held)+len(b) <= enough {
		f.held = append(f.held, b...)
		return len(b), nil
	}
	f.passThrough()
	f.to.Write(b)
	return len(b), nil
}

// Close ends the waiting. What was held back until now is not passed on.
func (f *Feed) Close() error {
	f.timer.Stop()
	return nil
}

func (f *Feed) openWriter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passThrough()
}

func (f *Feed) passThrough() {
	f.opened = true
	if len(f.held) > 0 {
		f.to.Write(f.held)
		f.held = nil
	}
}
