package cpushare

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/exec/procid"
)

// names are the folders in a folder.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return all
}

// A group is there as long as a program uses it. In a folder that is none of the kernel's, a file of the weight stays.
func TestAGroupLivesAsLongAsItsPrograms(t *testing.T) {
	at := t.TempDir()
	first, err := Join(Folder{Path: at}, "one", false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Join(Folder{Path: at}, "one", false)
	if err != nil || second.Dir() != first.Dir() {
		t.Fatalf("the groups are %s and %s (%v)", first.Dir(), second.Dir(), err)
	}
	other, err := Join(Folder{Path: at}, "../other", false)
	if err != nil || filepath.Dir(other.Dir()) != filepath.Dir(first.Dir()) || other.Dir() == first.Dir() {
		t.Fatalf("the groups are %s and %s (%v)", first.Dir(), other.Dir(), err)
	}
	kept, err := Join(Folder{Path: at}, "one", true)
	if err != nil || filepath.Dir(kept.Dir()) == filepath.Dir(first.Dir()) {
		t.Fatalf("the group of what outlives the host is %s (%v)", kept.Dir(), err)
	}
	first.Leave()
	first.Leave()
	if _, err := os.Stat(second.Dir()); err != nil {
		t.Error(err)
	}
	second.Leave()
	if _, err := os.Stat(second.Dir()); !os.IsNotExist(err) {
		t.Errorf("the group of no program is there: %v", err)
	}
	if _, err := os.Stat(other.Dir()); err != nil {
		t.Error(err)
	}
	other.Leave()
	kept.Leave()
	var none *Share
	none.Leave()
}

// A host that starts removes the groups of hosts that have ended, and of no other.
func TestSweepRemovesWhatEndedHostsLeft(t *testing.T) {
	at := t.TempDir()
	space, _, _ := strings.Cut(procid.Self(), "-")
	ended := prefix + space + "-4194305-1-" + suffix // above the largest number there can be
	stay := []string{prefix + procid.Self() + "-" + suffix, prefix + "1-4194305-1-other", "cpu"}
	for _, dir := range append([]string{ended, keptName}, stay...) {
		if err := os.MkdirAll(filepath.Join(at, dir, "owner"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	Sweep("")
	Sweep(at)
	slices.Sort(stay)
	if got := names(t, at); !slices.Equal(got, stay) {
		t.Errorf("left are %q, not %q", got, stay)
	}
}
