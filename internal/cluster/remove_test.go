package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestADeadMemberIsRemoved replaces a node that has died: the others do not wait for it any more, its copies of records
// are made on the new one, and it cannot come back.
func TestADeadMemberIsRemoved(t *testing.T) {
	all := three(t)
	authority, err := OpenAuthority(all[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	raw, err := authority.JoinToken(time.Hour)
	if err == nil {
		err = os.WriteFile(token, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	fourth := all[2]
	fourth.Listen, fourth.Dir = address(t), filepath.Join(t.TempDir(), "fourth")
	all[0].TLS = true
	for _, o := range []*Options{&all[1], &all[2], &fourth} {
		o.TLS, o.TokenFile = true, token
	}
	nodes := startNodes(t, all...)
	a, dead := nodes[0], nodes[2]
	bucket, err := a.Bucket(t.Context(), "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), "kept", []byte("x")); err != nil {
		t.Fatal(err)
	}
	refused := func(what, id, expected string) {
		t.Helper()
		if err := a.Remove(t.Context(), id); err == nil || !strings.Contains(err.Error(), expected) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("one of three", dead.ID(), "would have 2 members")
	d := startNodes(t, fourth)[0]
	refused("a node that is heard", dead.ID(), "is heard")
	refused("no node", "aaaaaaaaaa", "is no member")
	refused("no id", "x", "is not the id")
	dead.Close()
	if err := a.Remove(t.Context(), dead.ID()); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(t.Context(), dead.ID()); err != nil {
		t.Error("again:", err)
	}

	three := []*Node{a, nodes[1], d}
	eventually(t, "all know that it is removed", func() bool {
		return !slices.ContainsFunc(three, func(n *Node) bool { return !n.Removed(dead.ID()) || len(n.Nodes()) != 3 })
	})
	// A change is confirmed as soon as the three have it.
	for _, n := range three {
		n.SetApplied("users", 1)
	}
	begun := time.Now()
	if err := a.Confirm(t.Context(), "users", 1); err != nil || time.Since(begun) > testLease {
		t.Errorf("confirmed after %v, %v", time.Since(begun), err)
	}
	eventually(t, "its records are on the other three", func() bool {
		s, err := a.js.Stream(t.Context(), "KV_"+a.stream("things"))
		return err == nil && current(s.CachedInfo().Cluster, three)
	})
	if r, err := bucket.Get(t.Context(), "kept"); err != nil || string(r.Value) != "x" {
		t.Errorf("the record: %v, %v", r, err)
	}
	testCannotComeBack(t, a, all[2])
}

// current reports whether a stream is on these nodes alone and each has all of it.
func current(c *jetstream.ClusterInfo, nodes []*Node) bool {
	at := []string{c.Leader}
	for _, r := range c.Replicas {
		if !r.Current {
			return false
		}
		at = append(at, r.Name)
	}
	slices.Sort(at)
	var want []string
	for _, n := range nodes {
		want = append(want, n.ID())
	}
	slices.Sort(want)
	return slices.Equal(at, want)
}

// testCannotComeBack starts a removed node with its certificate, which is refused.
func testCannotComeBack(t *testing.T, a *Node, o Options) {
	o.Start = 5 * time.Second
	n, err := Start(t.Context(), o)
	if err == nil {
		n.Close()
		t.Fatal("a removed node was started")
	}
	if errors.Is(err, ErrRemoved) {
		t.Error("its certificate was accepted, and it has read records of the cluster:", err)
	}
	if id, err := IDOf(o.Dir); err != nil || a.Alive(id) {
		t.Errorf("node %s is heard, %v", id, err)
	}
}
