//go:build linux && (amd64 || arm64)

package firecracker

import (
	"os"
	"syscall"
	"testing"
)

func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// newPipe is one that is closed with the test.
func newPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}
