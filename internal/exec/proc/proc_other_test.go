//go:build unix && !linux

package proc

import (
	"os"
	"syscall"
	"testing"
)

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func members(group int) []string {
	if syscall.Kill(-group, 0) == nil {
		return []string{"somebody"}
	}
	return nil
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
