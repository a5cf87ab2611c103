//go:build linux

package rootfs

import (
	"os"
	"runtime"
	"sync"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// A Starter owns threads that start processes with PR_SET_PDEATHSIG. The kernel kills such a process when the
// thread that started it exits, so the threads stay until Close.
type Starter struct {
	begin func() error
	work  chan func(error)
	quit  chan struct{}
	once  sync.Once

	mu      sync.Mutex
	threads int
	most    int
}

// NewStarter returns a Starter with at most most threads; 0 means twice the number of processors, above which
// each start only takes longer. begin, which may be nil, is called once on each thread.
func NewStarter(most int, begin func() error) *Starter {
	if most <= 0 {
		most = 2 * runtime.NumCPU()
	}
	return &Starter{begin: begin, work: make(chan func(error)), quit: make(chan struct{}), most: most}
}

// Do runs f on one of the threads and waits for it.
func (s *Starter) Do(f func() error) error {
	done := make(chan error, 1)
	job := func(begun error) {
		if begun != nil {
			done <- begun
			return
		}
		done <- f()
	}
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

func (s *Starter) grow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.threads < s.most {
		s.threads++
		go s.thread()
	}
}

// thread runs jobs on a locked thread. It never uses the process's first thread, because settings of that
// thread are visible as those of the process; if the goroutine lands there, it blocks the thread and starts
// another goroutine.
func (s *Starter) thread() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		go s.thread()
		<-s.quit
		runtime.UnlockOSThread()
		return
	}
	var begun error
	if s.begin != nil {
		begun = s.begin()
	}
	for {
		select {
		case <-s.quit:
			return
		case f := <-s.work:
			f(begun)
		}
	}
}

// Close ends the threads. It may be called more than once.
func (s *Starter) Close() { s.once.Do(func() { close(s.quit) }) }
