package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestEpochs remembers what was heard of other nodes, also after a restart.
func TestEpochs(t *testing.T) {
	dir := t.TempDir()
	e, err := loadEpochs(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		epoch uint64
		whole bool
	}{{0, true}, {5, true}, {5, true}, {0, true}, {4, false}, {7, true}} {
		if got := e.hear("aaaaaaaaaa", c.epoch); got != c.whole {
			t.Errorf("epoch %d: %v", c.epoch, got)
		}
	}
	e.hear("bbbbbbbbbb", 3)
	e.forget("bbbbbbbbbb")
	for _, own := range []bool{true, true, false} {
		if err := e.write(own); err != nil {
			t.Fatal(err)
		}
	}
	again, err := loadEpochs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if own, heard := again.get(); own != 2 || len(heard) != 1 || heard["aaaaaaaaaa"] != 7 {
		t.Errorf("after a restart: %d, %v", own, heard)
	}
	if err := os.WriteFile(filepath.Join(dir, epochsName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadEpochs(dir); err == nil {
		t.Error("a file that cannot be read is taken for one without epochs")
	}
}

// testImages has a node run on with the epoch of an earlier time, and start again with the disk of an earlier time.
// It returns that node.
func testImages(t *testing.T, o Options, n *Node, others ...*Node) *Node {
	bucket, err := others[0].Bucket(t.Context(), "images", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := bucket.Put(t.Context(), "kept", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others have heard the epoch of the node", func() bool {
		own, _ := n.epochs.get()
		for _, other := range others {
			if _, heard := other.epochs.get(); own == 0 || heard[n.id] == 0 {
				return false
			}
		}
		return true
	})
	n.epochs.mu.Lock()
	n.epochs.own = 0
	n.epochs.mu.Unlock()
	<-n.Out()
	if err := n.Fresh(); !errors.Is(err, ErrOldImage) || !errors.Is(n.OutCause(), ErrOldImage) {
		t.Errorf("a node that was set back: %v, %v", err, n.OutCause())
	}
	n.Close()
	if err := os.Remove(filepath.Join(o.Dir, epochsName)); err != nil { // as on an old image
		t.Fatal(err)
	}
	again := startNodes(t, o)[0]
	own, _ := again.epochs.get()
	if _, heard := others[0].epochs.get(); own < heard[n.id] || own == 0 {
		t.Errorf("the node goes on at epoch %d, and %d was heard", own, heard[n.id])
	}
	if again.ID() != n.ID() {
		t.Errorf("it is %s now, not %s", again.ID(), n.ID())
	}
	again.SetApplied("tokens", 7) // as the others have
	eventually(t, "it is fresh again", func() bool { return again.Fresh() == nil })
	eventually(t, "it has all copies again", func() bool {
		for _, bucket := range []string{"images", "things"} { // the caller goes on with the second, and ends another node
			s, err := again.js.Stream(t.Context(), "KV_"+again.stream(bucket))
			if err != nil || !current(s.CachedInfo().Cluster, append([]*Node{again}, others...)) {
				return false
			}
		}
		return true
	})
	mine, err := again.Bucket(t.Context(), "images", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := mine.Get(t.Context(), "kept"); err != nil || r.Revision != revision {
		t.Errorf("the record: %+v, %v", r, err)
	}
	return again
}
