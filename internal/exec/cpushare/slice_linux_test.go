package cpushare

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads of this process, also those that begin meanwhile, have the slice of a host, packages that it starts have
// a shorter one, and both keep their priority.
func TestSlicesAreShortened(t *testing.T) {
	if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy != unix.SCHED_NORMAL || a.Runtime == 0 {
		t.Skipf("this kernel has no slices of single threads, or the test is not scheduled by them: %+v, %v", a, err)
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	end := make(chan struct{})
	defer func() { close(end); busy.Wait() }()
	for range 4 {
		busy.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-end:
					return
				default: // system calls make the runtime start threads
					os.ReadFile("/proc/self/stat")
				}
			}
		})
	}
	if err := ShortenSlices(); err != nil {
		t.Fatal(err)
	}
	check := func(id int, what string, slice uint64) {
		t.Helper()
		a, err := unix.SchedGetAttr(id, 0)
		if err == nil && (a.Runtime != slice || a.Nice != int32(20-nice)) {
			t.Errorf("%s has a slice of %d ns and priority %d, want %d and %d", what, a.Runtime, a.Nice, slice, 20-nice)
		}
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range threads {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		check(id, "thread "+e.Name(), hostSlice)
	}
	c := exec.CommandContext(t.Context(), "sleep", "60")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := StartApart(c.Start); err != nil {
		t.Fatal(err)
	}
	check(c.Process.Pid, "a package", packageSlice)
	check(unix.Gettid(), "the thread that started it", hostSlice)
	c.Process.Kill()
	c.Wait()
}
