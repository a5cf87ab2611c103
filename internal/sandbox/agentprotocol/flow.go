package agentprotocol

import (
	"fmt"
	"sync"
)

// small is how many bytes a chunk gathers of frames that are smaller still, so
// that what waits takes hardly more memory than it has bytes.
const small = 1 << 10

// Inbox holds what arrived of one stream until it is taken. It is safe for
// concurrent use.
type Inbox struct {
	mu     sync.Mutex
	more   *sync.Cond
	chunks [][]byte
	size   int
	ended  bool
}

// NewInbox makes an empty one.
func NewInbox() *Inbox {
	i := &Inbox{}
	i.more = sync.NewCond(&i.mu)
	return i
}

// Put adds bytes, which the inbox then owns. It is ErrBroken when there would
// be more than a Window: whoever sent them was not granted so much.
func (i *Inbox) Put(b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil // what was on its way when the reader left
	}
	if i.size+len(b) > Window {
		return fmt.Errorf("%w: more of a stream than was granted", ErrBroken)
	}
	if last := len(i.chunks) - 1; last >= 0 && len(i.chunks[last])+len(b) <= small {
		i.chunks[last] = append(i.chunks[last], b...)
	} else {
		i.chunks = append(i.chunks, b)
	}
	i.size += len(b)
	i.more.Signal()
	return nil
}

// End says that nothing follows.
func (i *Inbox) End() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.more.Broadcast()
}

// Drop ends it and throws away what was not taken.
func (i *Inbox) Drop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended, i.chunks, i.size = true, nil, 0
	i.more.Broadcast()
}

// Take waits for bytes; ok is false after the last of them. Who takes grants
// the sender as many.
func (i *Inbox) Take() (b []byte, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.chunks) == 0 && !i.ended {
		i.more.Wait()
	}
	if len(i.chunks) == 0 {
		return nil, false
	}
	b, i.chunks = i.chunks[0], i.chunks[1:]
	i.size -= len(b)
	return b, true
}

// Debt counts what was taken of a stream and not granted yet. Grants are made
// for many bytes at once: whoever sends has most of a Window left meanwhile. It
// is one goroutine's.
type Debt struct{ bytes int }

// Took counts n bytes and gives how many to grant now, which may be none.
func (d *Debt) Took(n int) uint32 {
	if d.bytes += n; d.bytes < Window/4 {
		return 0
	}
	grant := d.bytes
	d.bytes = 0
	return uint32(grant)
}

// Allowance is what may still be sent of one stream. It is safe for concurrent
// use.
type Allowance struct {
	mu    sync.Mutex
	more  *sync.Cond
	left  int
	free  bool
	ended bool
}

// NewAllowance begins with a Window.
func NewAllowance() *Allowance {
	a := &Allowance{left: Window}
	a.more = sync.NewCond(&a.mu)
	return a
}

// Take waits until something may be sent and takes at most most of it; 0
// means that nothing will be granted any more.
func (a *Allowance) Take(most int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.left == 0 && !a.ended && !a.free {
		a.more.Wait()
	}
	if a.ended {
		return 0
	}
	if a.free {
		return most
	}
	n := min(most, a.left)
	a.left -= n
	return n
}

// Add grants n bytes. It is ErrBroken when that is more than was taken.
func (a *Allowance) Add(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.free {
		return nil
	}
	if a.left += n; a.left > Window {
		return fmt.Errorf("%w: more was granted than was sent", ErrBroken)
	}
	a.more.Signal()
	return nil
}

// Free grants whatever will be asked for: what is sent from here on goes nowhere.
func (a *Allowance) Free() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = true
	a.more.Broadcast()
}

// End lets those who wait go.
func (a *Allowance) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.more.Broadcast()
}
