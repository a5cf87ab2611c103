package privatefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestWhatIsWrittenIsReadByNobodyElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "file")
	for _, text := range []string{"one", "two"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := Read(path, 10); err != nil || string(b) != text {
			t.Fatalf("got %q, %v, want %q", b, err, text)
		}
	}
	if runtime.GOOS != "windows" {
		file, _ := os.Stat(path)
		folder, _ := os.Stat(filepath.Dir(path))
		if file.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
			t.Errorf("file %v in folder %v", file.Mode(), folder.Mode())
		}
	}
	left, err := filepath.Glob(path + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("%v was left behind (%v)", left, err)
	}
}

//redteam:attack Keys stay here: a private file that others can read, or a link
func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, "long")
	if err := Write(long, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(long, 10); err == nil {
		t.Error("a file over the limit was read")
	}
	if _, err := Read(dir, 10); err == nil {
		t.Error("a folder was read")
	}
	if _, err := Read(open, 10); !errors.Is(err, ErrExposed) && runtime.GOOS != "windows" {
		t.Errorf("got %v for a file that others can read", err)
	}
}

func TestCreateReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Create(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	if b, _ := Read(path, 10); string(b) != "first" {
		t.Errorf("the file holds %q", b)
	}
}

// Many writers each add one to a number; none is lost.
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
}

func TestTheLockOfAProcessThatIsGoneIsTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := Lock(path); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
