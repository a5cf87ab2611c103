// Package delayed forwards the output of a running call once the call has run long or printed much. Short output
// is in the result, and needs neither progress nor a resource.
package delayed

import (
	"io"
	"sync"
	"time"
)

const (
	enough = 32 << 10               // bytes that are buffered before forwarding
	soon   = 500 * time.Millisecond // how long they are buffered
)

// Feed is a writer that forwards output to a receiver. It is safe for concurrent use; writing to it never fails.
type Feed struct {
	to    io.Writer
	timer *time.Timer

	mu     sync.Mutex
	opened bool
	held   []byte
}

// To returns a feed that forwards to w and ignores w's errors. The caller must call Close when the call has ended.
func To(w io.Writer) *Feed {
	f := &Feed{to: w}
	f.timer = time.AfterFunc(soon, f.openWriter)
	return f
}

// Write accepts all of b, in the order of the calls.
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

// Close stops the feed. Output that is still buffered is not forwarded.
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
