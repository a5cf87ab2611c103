package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
)

// Sweeps checks that a driver, when it starts, removes from a folder what hosts that have ended left there, in
// folders named after their processes.
func Sweeps(t *testing.T, prefix string, begin func(parent string) (sandbox.Driver, error)) {
	t.Helper()
	parent := t.TempDir()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	space, _, _ := strings.Cut(procid.Self(), "-")
	left := filepath.Join(parent, prefix+"somebody-1")
	gone := filepath.Join(parent, prefix+space+"-"+strconv.Itoa(dead.Process.Pid)+"-1-1")
	reused := filepath.Join(parent, prefix+space+"-"+strconv.Itoa(os.Getpid())+"-1-1") // the number is ours by now
	for _, dir := range []string{left, gone, reused} {
		if err := os.MkdirAll(filepath.Join(dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := begin(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, dir := range []string{gone, reused} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("what a dead process left is still there: %v", err)
		}
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("what is nobody's was removed: %v", err)
	}
}
