package cpushare

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortest is the shortest time slice that the kernel accepts, in nanoseconds.
const shortest = 100_000

// ShortenSlices has this process, and the processes that it starts from now on, run for .1 ms at a time where others
// want the same processor. It changes how soon a program runs, not how much of the processor it gets: one that waits for
// messages runs as soon as one comes, instead of when another program has used up some milliseconds. A program that sets
// itself a longer slice is interrupted at once by those with a shorter one. Kernels before 6.12 accept the setting and
// ignore it.
func ShortenSlices() error {
	done := map[int]bool{}
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("shorten time slices: %w", err)
		}
		before := len(done)
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			if err := shortenSlice(id); err != nil {
				return fmt.Errorf("shorten the time slice of thread %d: %w", id, err)
			}
			done[id] = true
		}
		if len(done) == before { // threads that were started meanwhile have what their starter had
			return nil
		}
	}
}

func shortenSlice(thread int) error {
	a, err := unix.SchedGetAttr(thread, 0)
	if err == nil && a.Policy == unix.SCHED_NORMAL {
		a.Runtime = shortest
		err = unix.SchedSetAttr(thread, a, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	return err
}
