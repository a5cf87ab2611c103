//go:build !race

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gatehouse/internal/exec/killtest"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/module/moduletest"
)

const killVariable = "GATEHOUSE_TEST_EDIT_ALL"

const killFiles = 200

// changeMany changes all files of a folder in one call, in a process that is killed meanwhile.
func changeMany(t *testing.T, dir string) {
	set, err := roots.Open([]roots.Dir{{Path: filepath.Join(dir, "w")}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Journal: filepath.Join(dir, "journal")})(context.Background(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i := range killFiles {
		paths = append(paths, fmt.Sprintf("f%03d", i))
	}
	c := moduletest.NewCall(t, mustJSON(t, editAllArgs(paths, nil, "new", 3)))
	c.Roots = set
	if bad := c.Ask(t, m, "file_edit_all", nil); bad != "" {
		t.Fatal(bad)
	}
}

// A host that is killed before any of its system calls while it changes 200 files leaves all of them changed, or the
// next host finds none of them changed.
func TestAKillWhile200FilesChange(t *testing.T) {
	if dir := os.Getenv(killVariable); dir != "" {
		changeMany(t, dir)
		return
	}
	step := 97 // of some 2,000 calls
	if testing.Short() {
		step = 797
	}
	both := [2]int{}
	for at, done := 1, false; !done; at += step {
		dir := t.TempDir()
		for i := range killFiles {
			path := filepath.Join(dir, "w", fmt.Sprintf("f%03d", i))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, []byte("a\nold 1\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestAKillWhile200FilesChange$")
		cmd.Env = append(os.Environ(), killVariable+"="+dir, "TMPDIR="+t.TempDir()) // it removes nothing of its own
		var err error
		if done, err = killtest.Before(cmd, at); errors.Is(err, killtest.ErrUnsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{Journal: filepath.Join(dir, "journal")})(t.Context(), module.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		changed := 0
		for i := range killFiles {
			b, err := os.ReadFile(filepath.Join(dir, "w", fmt.Sprintf("f%03d", i)))
			if err != nil {
				t.Fatal(err)
			}
			if string(b) == "a\nnew 1\n" {
				changed++
			} else if string(b) != "a\nold 1\n" {
				t.Fatalf("a file holds %q", b)
			}
		}
		if changed != 0 && changed != killFiles {
			t.Fatalf("killed before call %d: %d of %d files are changed", at, changed, killFiles)
		}
		both[changed/killFiles]++
		if left, _ := os.ReadDir(filepath.Join(dir, "journal")); len(left) > 0 && !done && changed == 0 {
			for _, n := range left {
				if filepath.Ext(n.Name()) == ".json" {
					t.Errorf("killed before call %d, and undone: %v is left", at, n.Name())
				}
			}
		}
	}
	t.Logf("old %d times, new %d times", both[0], both[1])
	if both[0] < 2 || both[1] < 1 {
		t.Errorf("old %d times, new %d times: the kills missed the change", both[0], both[1])
	}
}

func mustJSON(t *testing.T, args []any) string {
	h := map[string]any{}
	for i := 0; i < len(args); i += 2 {
		h[args[i].(string)] = args[i+1]
	}
	return toJSON(t, h)
}
