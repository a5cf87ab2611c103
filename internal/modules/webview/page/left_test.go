package page

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
)

// Browsers that are opened and closed leave no process, no file and no cgroup, whether they are confined or not.
func TestNothingIsLeft(t *testing.T) {
	if _, err := chromium.FindProgram(""); err != nil {
		t.Skip("there is no chromium: make setup installs it")
	}
	cycles := 50
	if testing.Short() {
		cycles = 3
	}
	drivers := []sandbox.Driver{nil}
	if d := confining(t, proxy.Options{}); d != nil {
		drivers = append(drivers, d)
	}
	for i := range cycles {
		b, err := Open(t.Context(), Options{Chromium: chromium.Options{
			NoSandbox: chromium.NeedsNoSandbox(), Processes: 1000, Driver: drivers[i%len(drivers)],
		}})
		if err != nil {
			t.Fatal(err)
		}
		pid := b.PID()
		b.Close()
		if _, err := os.Stat("/proc/self"); err == nil && pid != 0 {
			if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
				t.Errorf("process %d is left", pid)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "ghb-"+procid.Self()+"-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left: %v %v", left, err)
	}
	if hasGroup(procid.Self()) {
		t.Error("a cgroup is left")
	}
}

// hasGroup reports whether a cgroup has the name of a host.
func hasGroup(id string) (found bool) {
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.Contains(e.Name(), id+"-") {
			found = true
		}
		return nil
	})
	return found
}
