package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
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

// Replace keeps the mode it is given and changes nothing if the file is not what
// the caller has read.
func TestReplaceStopsAtAChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Replace(path, []byte("first"), 0o644, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 && runtime.GOOS != "windows" {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	changed := errors.New("changed")
	if err := Replace(path, []byte("second"), 0o644, func() error { return changed }); !errors.Is(err, changed) {
		t.Errorf("got %v, want the error of the check", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "first" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("%v was left behind (%v)", left, err)
	}
}
