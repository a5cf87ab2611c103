package cpushare

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Time slices in nanoseconds. Shorter ones than that of a package are not accepted by the kernel.
const (
	hostSlice    = 200_000
	packageSlice = 100_000
)

// ShortenSlices has this process run for .2 ms at a time where others want the same processor. It changes how soon a
// program runs, not how much of the processor it gets: one that waits for messages runs as soon as one comes, instead
// of when another program has used up some milliseconds. Who sets a longer slice is interrupted at once by those with a
// shorter one. Kernels before 6.12 accept the setting and ignore it. The processes that this one starts inherit it.
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
			if err := setSlice(id, hostSlice); err != nil {
				return fmt.Errorf("shorten the time slice of thread %d: %w", id, err)
			}
			done[id] = true
		}
		if len(done) == before { // threads that were started meanwhile have what their starter had
			return nil
		}
	}
}

// StartApart calls start, which starts a process, with a slice that is shorter than that of ShortenSlices. A program
// that gets a message then runs at once, also where this process is busy with the messages of another. The caller has
// locked its thread.
func StartApart(start func() error) error {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL || setSlice(0, packageSlice) != nil {
		return start()
	}
	return errors.Join(start(), unix.SchedSetAttr(0, a, 0))
}

func setSlice(thread int, slice uint64) error {
	a, err := unix.SchedGetAttr(thread, 0)
	if err == nil && a.Policy == unix.SCHED_NORMAL {
		a.Runtime = slice
		err = unix.SchedSetAttr(thread, a, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	return err
}
