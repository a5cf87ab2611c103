package cluster

import (
	"testing"
	"time"
)

// TestANodeThatStartsHearsNoneThatIsBehind has two of three nodes apply a change, which is confirmed without the third.
// One of the two dies, and the other is started again. Until it knows that it has the change, it must not let the third
// one be fresh.
func TestANodeThatStartsHearsNoneThatIsBehind(t *testing.T) {
	all := three(t)
	nodes := startNodes(t, all...)
	a, b, late := nodes[0], nodes[1], nodes[2]
	const feed = "things"
	a.SetApplied(feed, 1)
	b.SetApplied(feed, 1)
	if err := a.Confirm(t.Context(), feed, 1); err != nil {
		t.Fatal(err)
	}
	if err := late.Fresh(); err == nil {
		t.Error("a node without a confirmed change is fresh")
	}
	a.Close()
	b.Close()
	again := all[1]
	again.Behind, again.Join = true, []string{all[2].Listen}
	b = startNodes(t, again)[0]
	eventually(t, "the nodes hear each other", func() bool { return b.Alive(late.ID()) && late.Alive(b.ID()) })
	stays := func(what string) {
		t.Helper()
		for end := time.Now().Add(2 * testLease); time.Now().Before(end); time.Sleep(testLease / 20) {
			if late.Fresh() == nil {
				t.Fatalf("a node without a confirmed change is fresh %s", what)
			}
		}
	}
	stays("while the other one does not know what it has")
	b.SetApplied(feed, 1)
	b.CaughtUp()
	stays("beside one that has the change")
	late.SetApplied(feed, 1)
	eventually(t, "both are fresh with the change", func() bool { return b.Fresh() == nil && late.Fresh() == nil })
}
