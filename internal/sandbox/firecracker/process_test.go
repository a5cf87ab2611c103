//go:build linux && (amd64 || arm64)

package firecracker

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stuck is a group that the thread cannot leave.
type stuck struct{ children string }

func (s *stuck) OpenV2() (*os.File, error) { return nil, nil }

func (s *stuck) Enter() error { return nil }

func (s *stuck) Leave() error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", unix.Gettid()))
	s.children = strings.TrimSpace(string(b))
	return errors.Join(err, errStuck)
}

var errStuck = errors.New("the group cannot be left")

func TestAProcessWhoseThreadIsStuckIsNotLeft(t *testing.T) {
	s := &stuck{}
	_, err := startProcess([]string{"/bin/sleep", "1000"}, t.TempDir(), false, s)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("the kernel does not tell what a thread started: %v", err)
	}
	if !errors.Is(err, errStuck) {
		t.Fatalf("%v", err)
	}
	if s.children == "" {
		t.Fatal("no process was started")
	}
	if _, err := os.Stat("/proc/" + s.children); !os.IsNotExist(err) {
		t.Errorf("process %s is left: %v", s.children, err)
	}
}
