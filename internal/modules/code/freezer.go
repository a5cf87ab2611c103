package code

import (
	"context"
	"sync"

	"gatehouse/internal/sandbox/manager"
)

// freezer stops the processes of a program while there is a reason to. A sandbox whose driver cannot do so goes on: it
// waits for the answers to its calls all the same. The zero value with a box is ready.
type freezer struct {
	box *manager.Box

	changing sync.Mutex // held while the sandbox is paused or resumed; locked before mu

	mu      sync.Mutex // guards the fields below, also while the sandbox is changed
	reasons int
	thawed  chan struct{} // closed when there is no reason any more; nil while there is none
	closed  bool
}

// freeze gives a reason, until thaw is called.
func (f *freezer) freeze(ctx context.Context) (thaw func()) {
	f.mu.Lock()
	if f.reasons++; f.reasons == 1 {
		f.thawed = make(chan struct{})
	}
	f.mu.Unlock()
	f.applyFreeze(ctx)
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.reasons--
		f.mu.Unlock()
		f.applyFreeze(ctx)
	})
}

// applyFreeze pauses or resumes the sandbox, whichever is due.
func (f *freezer) applyFreeze(ctx context.Context) {
	f.changing.Lock()
	defer f.changing.Unlock()
	f.mu.Lock()
	reasons, closed := f.reasons, f.closed
	f.mu.Unlock()
	if closed {
		return
	}
	if reasons > 0 {
		f.box.Pause(ctx) // a driver that cannot is no failure of the call
		return
	}
	f.box.Resume(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reasons == 0 && f.thawed != nil {
		close(f.thawed)
		f.thawed = nil
	}
}

// awaitThaw waits until the program runs, or ctx ends.
func (f *freezer) awaitThaw(ctx context.Context) {
	for {
		f.mu.Lock()
		thawed := f.thawed
		f.mu.Unlock()
		if thawed == nil {
			return
		}
		select {
		case <-thawed:
		case <-ctx.Done():
			return
		}
	}
}

// close stops pausing and resuming, because the sandbox is about to end.
func (f *freezer) close() {
	f.changing.Lock()
	defer f.changing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.thawed != nil {
		close(f.thawed)
		f.thawed = nil
	}
}
