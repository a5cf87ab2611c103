//go:build amd64 || arm64

package namespaces

import (
	"runtime"
	"sync"

	"gatehouse/internal/sandbox"
)

// A starter has threads that start agents. The kernel ends an agent when the
// thread that started it ends, so they stay until the driver is closed.
type starter struct {
	work chan func()
	quit chan struct{}

	mu      sync.Mutex
	threads int
	most    int
}

func newStarter(most int) *starter {
	if most <= 0 {
		most = 2 * runtime.NumCPU()
	}
	return &starter{work: make(chan func()), quit: make(chan struct{}), most: most}
}

// do runs f on one of the threads and waits for it.
func (s *starter) do(f func() error) error {
	done := make(chan error, 1)
	job := func() { done <- f() }
	select {
	case <-s.quit:
		return sandbox.ErrDriverClosed
	case s.work <- job: // a thread was idle
		return <-done
	default:
	}
	s.grow()
	select {
	case <-s.quit:
		return sandbox.ErrDriverClosed
	case s.work <- job:
		return <-done
	}
}

func (s *starter) grow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.threads < s.most {
		s.threads++
		go s.thread()
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

// close lets the threads go. It is called once.
func (s *starter) close() { close(s.quit) }
