package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"gatehouse/internal/exec/procid"
)

// Kill sends SIGKILL without a request to end before, because the child could react to that.
func TestKillDoesNotAskFirst(t *testing.T) {
	dir := t.TempDir()
	const script = `trap 'echo asked > asked' TERM; echo > ready; while :; do sleep 0.02; done`
	seen := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	for _, detached := range []bool{false, true} {
		os.Remove(filepath.Join(dir, "ready"))
		spec := Spec{Path: "sh", Args: []string{"-c", script}, Dir: dir, Whole: true}
		var kill func() error
		if detached {
			d, err := Detach(spec)
			if err != nil {
				t.Skip(err)
			}
			kill = d.Kill
		} else {
			p, err := Start(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			kill = p.Kill
		}
		for end := time.Now().Add(time.Minute); !seen("ready") &&
			time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
		if err := kill(); err != nil {
			t.Error(err)
		}
		if seen("asked") {
			t.Errorf("detached %v: it was asked to end before it was killed", detached)
		}
	}
}

// A host that starts first ends the processes that a killed host has left.
func TestSweepEndsWhatIsLeft(t *testing.T) {
	g := hostGroups()
	at := g.v2
	if at == "" {
		at = g.pids
	}
	if at == "" {
		t.Skip("no group can be made here")
	}
	p, err := Start(t.Context(), Spec{Path: "sleep", Args: []string{"1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	gone, err := Start(t.Context(), Spec{Path: "true"})
	if err != nil {
		t.Fatal(err)
	}
	name := procid.Of(gone.Pid())
	gone.Wait()
	if name == "" {
		t.Skip("it ended too early to be named")
	}
	left := filepath.Join(at, leafPrefix+name+"-LEFT")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Skip(err)
	}
	defer os.Remove(left)
	if err := put(left, "cgroup.procs", strconv.Itoa(p.Pid())); err != nil {
		t.Skip(err)
	}
	sweepLeft(at)
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Error("it still runs")
	}
}
