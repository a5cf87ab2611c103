package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// copiesAt reports whether each bucket of a cluster has so many copies, all of which are up to date.
func copiesAt(t *testing.T, n *Node, copies int) func() bool {
	return func() bool {
		if wrong, err := n.bucketsWithout(t.Context(), copies); err != nil || len(wrong) > 0 {
			return false
		}
		for s := range n.js.ListStreams(t.Context()).Info() {
			if s.Cluster == nil || len(s.Cluster.Replicas) != copies-1 {
				return false
			}
			for _, r := range s.Cluster.Replicas {
				if !r.Current {
					return false
				}
			}
		}
		return true
	}
}

// TestFiveNodes lets a cluster of three grow to five, of which two die at once, and shrink to three again, while a
// client writes: no write that was acknowledged is lost.
func TestFiveNodes(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("set GATEHOUSE_TEST_ALL to start five nodes")
	}
	options := three(t)
	nodes := startNodes(t, options...)
	a := nodes[0]
	b, err := a.Bucket(t.Context(), "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var made atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	acknowledged := map[string]bool{}
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			key := fmt.Sprint("k", i)
			switch _, err := b.Create(t.Context(), key, []byte("x")); {
			case err == nil:
				acknowledged[key] = true
				made.Add(1)
			case errors.Is(err, ErrConflict):
				t.Errorf("%s: %v", key, err)
			}
		}
	}()
	writes := func(what string) {
		t.Helper()
		was := made.Load()
		eventually(t, what, func() bool { return made.Load() > was+10 })
	}
	writes("three nodes write")
	eventually(t, "three copies", copiesAt(t, a, 3))
	var more []Options
	for i := 3; i < 5; i++ {
		o := options[1]
		o.Listen, o.Dir = address(t), filepath.Join(t.TempDir(), fmt.Sprint(i))
		more = append(more, o)
	}
	nodes = append(nodes, startNodes(t, more...)...)
	begun := time.Now()
	eventually(t, "five copies", copiesAt(t, a, 5))
	t.Logf("five copies after %v", time.Since(begun).Round(time.Millisecond))
	if b, err := a.Bucket(t.Context(), "new", BucketOptions{}); err != nil {
		t.Error(err)
	} else if _, err := b.Put(t.Context(), "x", nil); err != nil {
		t.Error(err)
	}
	eventually(t, "a new bucket has five copies, too", copiesAt(t, a, 5))
	for _, n := range nodes[3:] { // as at their death: the others are not told
		n.engine.close()
		n.Close()
	}
	writes("three of five write")
	for _, n := range nodes[3:] {
		if err := a.Remove(t.Context(), n.ID()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three copies again", copiesAt(t, a, 3))
	writes("three nodes write again")
	nodes[2].engine.close()
	nodes[2].Close()
	writes("two of three write")
	close(stop)
	<-done
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		delete(acknowledged, r.Key)
	}
	if len(acknowledged) > 0 {
		t.Errorf("%d acknowledged writes are lost", len(acknowledged))
	}
	t.Logf("%d writes", made.Load())
}
