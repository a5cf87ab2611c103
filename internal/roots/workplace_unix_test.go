//go:build unix

package roots

import (
	"path/filepath"
	"syscall"
	"testing"
)

func TestAPipeIsNotWaitedFor(t *testing.T) {
	home := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(home, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open([]Dir{{Path: home}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := OpenWorkplace(s, "pipe", "dir"); err == nil {
		t.Error("a pipe is taken for a folder")
	}
}
