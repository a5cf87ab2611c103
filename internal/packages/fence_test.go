package packages

import (
	"errors"
	"log/slog"
	"testing"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
)

// TestAnEarlierHolderRemovesNothing has a node go on with the removal of a package whose lease it has lost: what the
// next holder gave the other nodes stays.
func TestAnEarlierHolderRemovesNothing(t *testing.T) {
	nodes := nodetest.Start(t)
	var managers []*Manager
	for _, n := range nodes[:2] {
		shared, err := n.Bucket(t.Context(), "packages", cluster.BucketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		places, err := n.Bucket(t.Context(), "places", cluster.BucketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		managers = append(managers, &Manager{
			ctx: t.Context(), log: slog.New(slog.DiscardHandler),
			opts: Options{Cluster: &Cluster{Node: n, Shared: shared, Places: places}},
		})
	}
	early, late := managers[0], managers[1]
	ended, err := early.lockPackage("thing")
	if err != nil {
		t.Fatal(err)
	}
	paused, err := early.fenceOf("thing")
	if err != nil {
		t.Fatal(err)
	}
	ended() // as the lease does by itself while its holder is paused
	release, err := late.lockPackage("thing")
	if err != nil {
		t.Fatal(err)
	}
	fence, err := late.fenceOf("thing")
	if err != nil {
		t.Fatal(err)
	}
	if err := fence.Put(t.Context(), "thing/lock/new", []byte("of the later holder")); err != nil {
		t.Fatal(err)
	}
	if _, err := late.opts.Cluster.Places.Put(t.Context(), "thing", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	early.fences.Store("thing", paused) // the paused node goes on
	if err := early.forgetShared("thing", false); !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("the earlier holder removes what nodes have in common: %v", err)
	}
	if r, err := late.opts.Cluster.Shared.Get(t.Context(), "thing/lock/new"); err != nil ||
		string(r.Value) != "of the later holder" {
		t.Errorf("the lock file: %q, %v", r.Value, err)
	}
	if _, err := late.opts.Cluster.Places.Get(t.Context(), "thing"); err != nil {
		t.Error("the place:", err)
	}
	release()
	if err := late.forgetShared("thing", false); err == nil {
		t.Error("without the lease it removes what nodes have in common")
	}
}
