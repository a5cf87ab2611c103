//go:build amd64 || arm64

package gvisor

import (
	"runtime"
	"sync"

	"gatehouse/internal/sandbox"
)

// A starter has one thread, on which all of runsc is started. The kernel ends
// what a thread started when the thread ends, so it stays until the driver is
// closed.
type starter struct {
	begin sync.Once
	work  chan func()
	quit  chan struct{}
	end   sync.Once
}

func newStarter() *starter { return &starter{work: make(chan func()), quit: make(chan struct{})} }

// do runs f on the thread and waits for it.
func (s *starter) do(f func() error) error {
	s.begin.Do(func() { go s.thread() })
	done := make(chan error, 1)
	select {
	case <-s.quit:
		return sandbox.ErrDriverClosed
	case s.work <- func() { done <- f() }:
		return <-done
	}
}

func (s *starter) thread() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for {
		select {
		case <-s.quit:
			return
		case f := <-s.work:
			f()
		}
	}
}

// close lets the thread go. It may be called again.
func (s *starter) close() { s.end.Do(func() { close(s.quit) }) }
