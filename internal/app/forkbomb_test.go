package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"gatehouse/internal/packages/packagestest"
)

// withHome returns the number of living processes whose HOME is a folder.
func withHome(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		b, err := os.ReadFile(file) // one that has ended reads as an error, or as nothing
		if err == nil && bytes.Contains(append([]byte{0}, b...), []byte("\x00HOME="+dir+"\x00")) {
			n++
		}
	}
	return n
}

// A package that forks without limit reaches a limit while the host keeps running, and no process of it remains
// after the package is removed.
//
//redteam:attack A package's server is a stranger: an installed package forks without limit
func TestAPackageThatForksWithoutLimit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are counted as Linux shows them")
	}
	const most, many = 512, 3000 // of internal/packages, and what the bomb tries
	cfg := ruled(t, "package", "file")
	home := filepath.Join(cfg.Folders.Data, "packages", "bomb", "data")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Each child ends on its own in the end, in case nothing limits them.
	script := fmt.Sprintf(`( while [ ! -e "$HOME/go" ]; do sleep 0.05; done
		i=0; while [ $i -lt %d ]; do sleep 120 & i=$((i+1)); done; echo > "$HOME/all" ) 2>/dev/null & exec %s`, many, program)
	args, err := json.Marshal(map[string]any{
		"id": "bomb", "command": "/bin/sh", "args": []string{"-c", script},
		"env": packagestest.Environment("good"), "confirm": "bomb", "trust": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, client := liveOn(t, cfg, Options{})
	admin := client("ann", "admin")
	if done := admin.wait(admin.result("package_install", string(args))); done["version"] != "1.2.3" {
		t.Fatalf("got %v", done)
	}
	eventually(t, "its tools are listed", func() bool { return slices.Contains(admin.names("default"), "bomb_echo") })
	expect(t, admin.call("default", "bomb_echo", `{"text":"a"}`), "arguments") // which starts it
	before := 0
	eventually(t, "its server runs", func() bool {
		before = withHome(t, home)
		return before > 0
	})
	if err := os.WriteFile(filepath.Join(home, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	highest, same := 0, 0
	eventually(t, "the bomb is at its limit, or was ended", func() bool {
		n := withHome(t, home)
		if n > highest {
			highest, same = n, 0
		} else {
			same++
		}
		return highest > before+1 && same > 20
	})
	t.Logf("at most %d processes at once", highest)
	if _, err := os.Stat(filepath.Join(home, "all")); !errors.Is(err, os.ErrNotExist) || highest > 2*most {
		t.Errorf("%d processes at once; all of them were started: %v", highest, err == nil)
	}
	if got := admin.result("file_write", `{"path":"after","content":"x"}`); got["refused"] != nil || len(got) == 0 {
		t.Errorf("the host no longer works: %v", got)
	}
	if got := admin.result("package_remove", `{"id":"bomb","confirm":"bomb"}`); got["removed"] != "bomb" {
		t.Error(got)
	}
	eventually(t, "nothing of the package is left", func() bool { return withHome(t, home) == 0 })
}
