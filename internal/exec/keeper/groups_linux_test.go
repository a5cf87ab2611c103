package keeper

import (
	"os"
	"path/filepath"
	"testing"
)

// When a host has ended, the empty groups of programs that were to outlive it are removed.
func TestEmptyGroupsOfKeptProgramsAreRemoved(t *testing.T) {
	at := t.TempDir()
	for _, dir := range []string{"gatehouse-kept-cpu/owner", "gatehouse-2-cpu/owner"} {
		if err := os.MkdirAll(filepath.Join(at, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	endGroups(plan{Groups: []string{at}, Prefix: "gatehouse-1-", Empty: []string{filepath.Join(at, "gatehouse-kept-cpu")}})
	entries, err := os.ReadDir(at)
	if err != nil || len(entries) != 1 || entries[0].Name() != "gatehouse-2-cpu" {
		t.Errorf("left are %v, %v; want gatehouse-2-cpu", entries, err)
	}
}
