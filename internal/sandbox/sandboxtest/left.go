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

// LeavesNothing has sandboxes be made and ended by cycle, and looks for what
// they left: open files, mounts, control groups that are named after this
// process, and what more finds that should not be there.
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

// here is what of this process may become more.
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

// Groups are the control groups of sandboxes with one of these in their names.
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

// number is how a process is told in the name of a control group.
func number(pid int) string { return fmt.Sprintf("-%d-", pid) }
