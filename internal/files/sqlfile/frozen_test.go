package sqlfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// disk mounts a small file system of its own, or skips the test.
func disk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if os.Getuid() != 0 || exec.Command("mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", dir).Run() != nil {
		t.Skip("this test may mount no file system")
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	return dir
}

func copied(t *testing.T, from, to string, suffixes ...string) {
	t.Helper()
	for _, s := range suffixes {
		text, err := os.ReadFile(from + s)
		if err == nil {
			err = os.WriteFile(to+s, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What is on a disk that is full or can only be read is read all the same, also
// what a killed program left in its journal; and it can be written when the disk
// can.
func TestAFileOnADiskThatCannotBeWrittenIsRead(t *testing.T) {
	for name, d := range map[string]struct {
		spoil, mend func(t *testing.T, dir string)
	}{
		"read-only": {
			func(t *testing.T, dir string) { remount(t, dir, "ro") },
			func(t *testing.T, dir string) { remount(t, dir, "rw") },
		},
		"full": {
			func(t *testing.T, dir string) {
				f, err := os.Create(filepath.Join(dir, "filling"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for err == nil {
					_, err = f.Write(make([]byte, 4096))
				}
			},
			func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "filling")) },
		},
	} {
		for _, killed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				dir := disk(t)
				path := filepath.Join(dir, "a.db")
				was := &File{
					Path:    filepath.Join(t.TempDir(), "a.db"),
					Schema:  "CREATE TABLE n (v INTEGER)",
					Version: 1,
					Secret:  true,
				}
				db, err := was.DB()
				if err == nil {
					_, err = db.Exec("INSERT INTO n VALUES (1), (2), (3)")
				}
				if err != nil {
					t.Fatal(err)
				}
				if killed {
					copied(t, was.Path, path, "", "-wal")
				}
				if err := was.Close(); err != nil {
					t.Fatal(err)
				}
				if !killed {
					copied(t, was.Path, path, "")
				}
				d.spoil(t, dir)
				f := &File{Path: path, Schema: was.Schema, Version: 1, Secret: true}
				defer f.Close()
				count := func() (n int) {
					t.Helper()
					r, err := f.Reader()
					if err == nil {
						err = r.QueryRow("SELECT count(*) FROM n").Scan(&n)
					}
					if err != nil {
						t.Fatal(err)
					}
					return n
				}
				if n := count(); n != 3 {
					t.Errorf("%d rows are read, want 3", n)
				}
				if f.Frozen() == nil {
					t.Error("it does not say that it cannot be written")
				}
				if _, err := f.DB(); err == nil {
					t.Error("it can be written")
				}
				before, err := f.Changes(t.Context())
				if err != nil {
					t.Error(err)
				}
				d.mend(t, dir)
				f.mu.Lock()
				f.frozen.at = f.frozen.at.Add(-2 * tryAgain)
				f.mu.Unlock()
				db, err = f.DB()
				if err == nil {
					_, err = db.Exec("INSERT INTO n VALUES (4)")
				}
				if err != nil {
					t.Fatal(err)
				}
				if after, err := f.Changes(t.Context()); err != nil || after == before {
					t.Errorf("nothing seems to have changed: %d, %v", after, err)
				}
				if n := count(); n != 4 || f.Frozen() != nil {
					t.Errorf("%d rows are read, want 4; %v", n, f.Frozen())
				}
				if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "gatehouse-frozen-*")); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	}
}

func remount(t *testing.T, dir, how string) {
	t.Helper()
	if out, err := exec.Command("mount", "-o", "remount,"+how, dir).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
}

// A file that is not what it should be is not read either.
func TestAFrozenFileIsCheckedToo(t *testing.T) {
	dir := disk(t)
	for name, mode := range map[string]os.FileMode{"open": 0o644, "empty": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	remount(t, dir, "ro")
	for _, name := range []string{"open", "empty"} {
		f := &File{Path: filepath.Join(dir, name), Schema: "CREATE TABLE n (v INTEGER)", Version: 1, Secret: true}
		if r, err := f.Reader(); err == nil {
			t.Errorf("%s: is read, %v", name, r)
		}
		f.Close()
	}
}
