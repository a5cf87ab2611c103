package sandboxtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// LeavesNothing calls cycle, which makes and closes sandboxes, and checks that nothing is left: no open files,
// mounts or control groups named after this process, and nothing that more returns.
func LeavesNothing(t *testing.T, times int, cycle func(), more func() []string) {
	t.Helper()
	cycle() // what is opened once is open now
	before := hereNow(t)
	for range times {
		cycle()
	}
	// Others on this machine mount and unmount as well, and what an earlier test
	// left to the collector may be closed: what is more than before has to stay
	// so to count.
	var after here
	var left []string
	if !become(func() bool {
		after, left = hereNow(t), append(Groups(number(os.Getpid())), more()...)
		return after.files <= before.files && after.mounts <= before.mounts && len(left) == 0
	}) {
		t.Errorf("%+v before, %+v after, and %q is left", before, after, left)
	}
}

// here is how many open files and mounts this process has.
type here struct{ files, mounts int }

func hereNow(t *testing.T) here {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return here{files: len(files), mounts: strings.Count(string(mounts), "\n")}
}

// Groups returns the control groups of sandboxes whose names contain one of the arguments.
func Groups(parts ...string) (all []string) {
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), "gatehouse-") {
			return nil
		}
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(e.Name(), part) }) {
			all = append(all, path)
		}
		return nil
	})
	return all
}

// number is how the name of a control group refers to a process.
func number(pid int) string { return fmt.Sprintf("-%d-", pid) }
