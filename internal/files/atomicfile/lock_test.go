package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Many writers each add one to a number; none is lost, and no file is left.
func TestOneWriterAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			unlock, err := Lock(path + ".lock")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			b, _ := Read(path, 10)
			n, _ := strconv.Atoi(string(b))
			if err := Write(path, []byte(strconv.Itoa(n+1))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if b, _ := Read(path, 10); string(b) != "8" {
		t.Errorf("counted %s, want 8", b)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("%v was left", left)
	}
}

func backdate(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

// A holder that works for long, or was asleep, or whose clock differs, keeps its
// lock: age does not break it.
func TestALockInUseIsNotBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	backdate(t, path)
	if second, err := lock(path, 50*time.Millisecond); err == nil {
		second()
		t.Error("two hold the lock")
	}
	unlock()
	if unlock, err = Lock(path); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// Waiters that find the file of a killed process do not remove each other's
// lock.
func TestOneOfTheWaitersThatFindAStaleLockHasIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.lock")
	for range 20 {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		backdate(t, path)
		var all sync.WaitGroup
		var inside atomic.Int32
		start := make(chan struct{})
		for range 8 {
			all.Go(func() {
				<-start
				unlock, err := Lock(path)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n > 1 {
					t.Errorf("%d have the lock at once", n)
				}
				inside.Add(-1)
				unlock()
			})
		}
		close(start)
		all.Wait()
	}
}

// A process of the version before, which makes the file and removes it, and one
// of this version exclude each other.
func TestTheVersionBeforeIsExcluded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.lock")
	before := func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	if err := before(); err != nil {
		t.Fatal(err)
	}
	if _, err := lock(path, 50*time.Millisecond); err == nil {
		t.Error("locked beside a process of the version before")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := before(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a process of the version before: %v", err)
	}
	unlock()
	if err := before(); err != nil {
		t.Error(err)
	}
}
