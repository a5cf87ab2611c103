package packages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What confinement costs, for docs/packages.md: the first call of a package that does not run, and the memory of what
// the sandbox adds to its processes.
func TestWhatConfinementCosts(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("set GATEHOUSE_TEST_ALL to measure")
	}
	h := confined(t, Options{})
	h.install(server(t, "held", "good"))
	free := server(t, "free", "good")
	free.Confinement = Trusted
	h.install(free)
	took := map[string][]time.Duration{}
	var added int64
	for range 40 {
		for _, id := range []string{"held", "free"} {
			p, err := h.findPackage(id)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.stopServers(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if _, err := h.call(id, "echo", `{}`); err != nil {
				t.Fatal(err)
			}
			took[id] = append(took[id], time.Since(begun))
			if id == "held" {
				added = max(added, sandboxMemory(t, p.info().PID))
			}
		}
	}
	median := func(id string) time.Duration {
		slices.Sort(took[id])
		return took[id][len(took[id])/2]
	}
	more := median("held") - median("free")
	t.Logf("the first call takes %v in a sandbox and %v without, %v more; the sandbox has %.1f MB of memory",
		median("held"), median("free"), more, float64(added)/1e6)
	if more > 60*time.Millisecond {
		t.Errorf("the first call takes %v longer in a sandbox; at most 60 ms are wanted", more)
	}
	if added > 5e6 {
		t.Errorf("a sandbox has %d bytes of memory beside its program; at most 5 MB are wanted", added)
	}
}

// sandboxMemory returns the proportional memory of the agent and the launcher of a sandbox.
func sandboxMemory(t *testing.T, agent int) (bytes int64) {
	all := []int{agent}
	for _, dir := range procFolders(t) {
		if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil &&
			strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", agent)) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			all = append(all, pid)
		}
	}
	if len(all) != 2 {
		t.Fatalf("the sandbox has the processes %v, not an agent and a launcher", all)
	}
	for _, pid := range all {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			t.Skipf("its memory is not known: %v", err)
		}
		_, rest, _ := strings.Cut(string(b), "\nPss:")
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		bytes += kb << 10
	}
	return bytes
}

func procFolders(t *testing.T) (dirs []string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip(err)
	}
	for _, e := range entries {
		if len(bytes.Trim([]byte(e.Name()), "0123456789")) == 0 {
			dirs = append(dirs, filepath.Join("/proc", e.Name()))
		}
	}
	return dirs
}
