package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOpenFilesAreLockedUntilTheyAreClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	first, second := open(t, path), open(t, path)
	if err := TryOpen(first, Exclusive); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("open files cannot be locked here")
	} else if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Exclusive, Shared} {
		if err := TryOpen(second, mode); !errors.Is(err, ErrHeld) {
			t.Errorf("beside another: %v", err)
		}
	}
	if _, err := first.WriteAt([]byte("1"), 0); err != nil {
		t.Error(err)
	}
	b := make([]byte, 1)
	if _, err := second.ReadAt(b, 0); err != nil || b[0] != '1' {
		t.Errorf("what is locked reads as %q, %v", b, err)
	}
	first.Close()
	if err := WaitOpen(t.Context(), second, Shared); err != nil {
		t.Error(err)
	}
	if err := TryOpen(open(t, path), Shared); err != nil {
		t.Errorf("shared beside shared: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WaitOpen(ctx, open(t, path), Exclusive); !errors.Is(err, context.Canceled) {
		t.Errorf("exclusive beside shared: %v", err)
	}
}

// A file that is locked by its path and one that is locked open are one.
func TestPathsAndOpenFilesAreOneLock(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("they are different bytes there")
	}
	path := filepath.Join(t.TempDir(), "f")
	l := try(t, path, Exclusive)
	f := open(t, path)
	if err := TryOpen(f, Exclusive); !errors.Is(err, ErrHeld) && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	l.Release()
}
