package agentprotocol

import (
	"fmt"
	"sync"
)

// coalesceBelow is the size up to which frames are gathered in one chunk, so that waiting data takes hardly more
// memory than it has bytes.
const coalesceBelow = 1 << 10

// Inbox buffers the data of one stream until it is read. It is safe for concurrent use.
type Inbox struct {
	mu     sync.Mutex
	more   *sync.Cond
	chunks [][]byte
	size   int
	closed bool
}

// NewInbox returns an empty Inbox.
func NewInbox() *Inbox {
	i := &Inbox{}
	i.more = sync.NewCond(&i.mu)
	return i
}

// Put adds b, which the inbox then owns. It returns ErrBroken if more than a Window would be buffered, because
// the sender was not granted that much.
func (i *Inbox) Put(b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil // was in flight when the reader stopped
	}
	if i.size+len(b) > Window {
		return fmt.Errorf("%w: more of a stream than was granted", ErrBroken)
	}
	if last := len(i.chunks) - 1; last >= 0 && len(i.chunks[last])+len(b) <= coalesceBelow {
		i.chunks[last] = append(i.chunks[last], b...)
	} else {
		i.chunks = append(i.chunks, b)
	}
	i.size += len(b)
	i.more.Signal()
	return nil
}

// Close marks the end of the stream. Buffered data can still be read.
func (i *Inbox) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.more.Broadcast()
}

// Discard marks the end of the stream and drops the buffered data.
func (i *Inbox) Discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed, i.chunks, i.size = true, nil, 0
	i.more.Broadcast()
}

// Receive waits for data; ok is false after the last of it. The caller must grant the sender as many bytes,
// see Consumed.
func (i *Inbox) Receive() (b []byte, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.chunks) == 0 && !i.closed {
		i.more.Wait()
	}
	if len(i.chunks) == 0 {
		return nil, false
	}
	b, i.chunks = i.chunks[0], i.chunks[1:]
	i.size -= len(b)
	return b, true
}

// Consumed counts the bytes that were read of a stream and not granted again yet. Grants are sent for many
// bytes at once, because the sender still has most of a Window left meanwhile. It is not safe for concurrent
// use.
type Consumed struct{ bytes int }

// Add counts n bytes and returns how many to grant now, which may be 0.
func (d *Consumed) Add(n int) uint32 {
	if d.bytes += n; d.bytes < Window/4 {
		return 0
	}
	grant := d.bytes
	d.bytes = 0
	return uint32(grant)
}

// Allowance is how many bytes may still be sent of one stream. It is safe for concurrent use.
type Allowance struct {
	mu        sync.Mutex
	more      *sync.Cond
	left      int
	unlimited bool
	closed    bool
}

// NewAllowance returns an Allowance of one Window.
func NewAllowance() *Allowance {
	a := &Allowance{left: Window}
	a.more = sync.NewCond(&a.mu)
	return a
}

// Acquire waits until something may be sent and acquires at most most bytes. It returns 0 if nothing will be
// granted any more.
func (a *Allowance) Acquire(most int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.left == 0 && !a.closed && !a.unlimited {
		a.more.Wait()
	}
	if a.closed {
		return 0
	}
	if a.unlimited {
		return most
	}
	n := min(most, a.left)
	a.left -= n
	return n
}

// Add grants n bytes. It returns ErrBroken if that is more than was acquired.
func (a *Allowance) Add(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unlimited {
		return nil
	}
	if a.left += n; a.left > Window {
		return fmt.Errorf("%w: more was granted than was sent", ErrBroken)
	}
	a.more.Signal()
	return nil
}

// Unlimit makes every Acquire succeed at once, because the data is discarded from now on.
func (a *Allowance) Unlimit() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unlimited = true
	a.more.Broadcast()
}

// Close makes every Acquire return 0.
func (a *Allowance) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.more.Broadcast()
}
