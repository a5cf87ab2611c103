package sqlfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gatehouse/internal/files/filelock"
)

// Hosts of this version and of the one before see each other's locks.
func TestHostsOfTwoVersionsExcludeEachOther(t *testing.T) {
	folder := t.TempDir()
	path, older := filepath.Join(folder, "host.lock"), filepath.Join(folder, "in-use.lock")
	for _, mode := range []filelock.Mode{filelock.Exclusive, filelock.Shared} {
		before, err := tryOlder(older, mode) // all that a host of the version before does
		if err != nil {
			t.Fatal(err)
		}
		if _, err := TryHost(path, older, filelock.Exclusive); !errors.Is(err, filelock.ErrHeld) {
			t.Errorf("beside the version before: %v", err)
		}
		if l, err := filelock.Try(path, filelock.Exclusive); err != nil {
			t.Errorf("what could not be locked is left locked: %v", err)
		} else {
			l.Release()
		}
		if err := before.unlock(); err != nil {
			t.Fatal(err)
		}
		l, err := TryHost(path, older, mode)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tryOlder(older, filelock.Exclusive); !errors.Is(err, filelock.ErrHeld) {
			t.Errorf("the version before, beside this one: %v", err)
		}
		if _, err := TryHost(path, older, filelock.Exclusive); !errors.Is(err, filelock.ErrHeld) {
			t.Errorf("beside this version: %v", err)
		}
		if mode == filelock.Shared {
			second, err := TryHost(path, older, mode)
			if err != nil {
				t.Fatalf("shared beside shared: %v", err)
			}
			second.Release()
			l.Release()
			continue
		}
		if err := l.Remove(); err != nil {
			t.Error(err)
		}
	}
	l, err := TryHost(path, older, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("%v was left", left)
	}
}
