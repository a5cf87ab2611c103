//go:build linux && amd64

package qemu

import (
	"runtime"
	"sync"

	"gatehouse/internal/sandbox"
)

// A starter has threads that start machines. The kernel ends a machine when the
// thread that started it ends, so they stay until the driver is closed.
type starter struct {
	work chan func()
	quit chan struct{}
	once sync.Once
}

func newStarter() *starter {
	s := &starter{work: make(chan func()), quit: make(chan struct{})}
	for range 2 * runtime.NumCPU() {
		go s.thread()
	}
	return s
}

// do runs f on one of the threads and waits for it.
func (s *starter) do(f func() error) error {
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

// close lets the threads go.
func (s *starter) close() { s.once.Do(func() { close(s.quit) }) }
