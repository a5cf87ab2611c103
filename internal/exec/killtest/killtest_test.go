package killtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A shell that makes two files is killed before the first, then between them, and
// at last not at all.
func TestBefore(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	seen := map[int]bool{}
	for n := 1; ; n++ {
		dir := t.TempDir()
		ended, err := Before(exec.Command(shell, "-c", "echo a >"+dir+"/a; echo b >"+dir+"/b"), n)
		if errors.Is(err, ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		seen[len(files)] = true
		if !ended {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(b) != "b\n" {
			t.Errorf("it ended with %q, %v", b, err)
		}
		break
	}
	if !seen[0] || !seen[1] || !seen[2] {
		t.Errorf("it was killed with these numbers of files: %v, want 0, 1 and 2", seen)
	}
}
