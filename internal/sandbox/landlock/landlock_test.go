//go:build linux

package landlock

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyWhatIsWritableCanBeWritten(t *testing.T) {
	if Version() == 0 {
		t.Skip("this kernel has no Landlock")
	}
	open, closed := t.TempDir(), t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
			Restrict([]string{open, "/not/there", "/dev/null"}, nil))
		done <- os.WriteFile(filepath.Join(open, "x"), []byte("x"), 0o600)
		done <- os.WriteFile("/dev/null", []byte("x"), 0)
		done <- os.WriteFile(filepath.Join(closed, "x"), []byte("x"), 0o600)
		_, err := os.ReadDir(closed)
		done <- err
	}()
	for _, c := range []struct {
		what string
		want error
	}{
		{"restrict", nil}, {"write where it may", nil}, {"write to a file that may be", nil},
		{"write elsewhere", os.ErrPermission}, {"read elsewhere", nil},
	} {
		if err := <-done; !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}
