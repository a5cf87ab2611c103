package filelock

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// holderEnv names the file that a process of TestMain locks until it is killed.
const holderEnv = "FILELOCK_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holderEnv); path != "" {
		if _, err := Try(path, Exclusive); err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("held\n")
		select {}
	}
	os.Exit(m.Run())
}

func try(t *testing.T, path string, mode Mode) *Lock {
	t.Helper()
	l, err := Try(path, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Release() })
	return l
}

func TestModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	one := try(t, path, Shared)
	two := try(t, path, Shared)
	if _, err := Try(path, Exclusive); !errors.Is(err, ErrHeld) {
		t.Errorf("exclusive beside shared: %v", err)
	}
	one.Release()
	if _, err := Try(path, Exclusive); !errors.Is(err, ErrHeld) {
		t.Errorf("exclusive beside the second shared: %v", err)
	}
	two.Release()
	alone := try(t, path, Exclusive)
	for _, mode := range []Mode{Shared, Exclusive} {
		if _, err := Try(path, mode); !errors.Is(err, ErrHeld) {
			t.Errorf("beside exclusive: %v", err)
		}
	}
	if err := alone.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	try(t, path, Exclusive)
}

// The lock of a process that is killed ends, and not before.
func TestALockEndsWithItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := Try(path, Exclusive); !errors.Is(err, ErrHeld) {
		t.Fatalf("held by another process for an hour: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	try(t, path, Exclusive)
}

// A holder that removes the file leaves no two holders, each with a file of its
// own.
func TestOneHolderWhileFilesAreRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var all sync.WaitGroup
	var inside atomic.Int32
	for range 4 {
		all.Go(func() {
			for range 100 {
				l, err := Wait(t.Context(), path, Exclusive)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n > 1 {
					t.Errorf("%d holders", n)
				}
				inside.Add(-1)
				if err := l.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestWaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	try(t, path, Exclusive)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Wait(ctx, path, Shared); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if _, err := Wait(t.Context(), filepath.Join(path, "below a file"), Shared); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("what cannot be opened: %v", err)
	}
}
