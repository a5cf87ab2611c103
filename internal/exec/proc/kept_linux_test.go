package proc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program that kills its keeper before the keeper can answer is not started a second time. Without a keeper its
// parent would be the host, which it would kill.
//
//redteam:attack A kill leaves no process: a program kills its keeper before the keeper can say that the program runs
func TestAProgramThatKillsItsKeeperRunsOnce(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	killed := 0
	for range 100 {
		os.Remove(ran)
		p, err := Start(context.Background(), Spec{Path: "/bin/sh", Dir: dir, Whole: true, cgroups: &cgroups{},
			Args: []string{"-c", `kill -9 $PPID; echo x >>ran; exec sleep 100000`}})
		if err == nil {
			p.Stop(t.Context())
			wait(t, p)
		} else if killed++; !strings.Contains(err.Error(), "was killed") {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(ran); len(b) > 2 {
			t.Fatalf("it ran %d times", len(b)/2)
		}
	}
	t.Logf("%d of 100 keepers were killed before they answered", killed)
}
