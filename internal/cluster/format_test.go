package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// testFormat meets records of a newer version: a lease, and the cluster itself.
func testFormat(t *testing.T, nodes []*Node, o Options) {
	ctx := t.Context()
	leases, err := nodes[0].Bucket(ctx, leasesBucket, BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newer := fmt.Appendf(nil, `{"holder":"x","token":{"of":"another kind"},"format":%d}`, Format+1)
	if _, err := leases.Create(ctx, "newer", newer); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[1].TryAcquire(ctx, "newer", time.Second); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("a lease of another form: %v", err)
	}
	if _, err := leases.Put(ctx, "newer", fmt.Appendf(nil, `{"format":%d}`, Format+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[1].TryAcquire(ctx, "newer", time.Second); !errors.Is(err, ErrFormat) {
		t.Errorf("a lease of a newer version: %v", err)
	}

	members, err := nodes[0].Bucket(ctx, membersBucket, BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := members.Get(ctx, formatKey)
	if err != nil || string(r.Value) != fmt.Sprint(Format) {
		t.Errorf("the format of the cluster: %s, %v", r.Value, err)
	}
	if _, err := members.Put(ctx, formatKey, fmt.Append(nil, Format+1)); err != nil {
		t.Fatal(err)
	}
	n, err := Start(ctx, o)
	if n != nil {
		n.Close()
	}
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "install the newer version") {
		t.Errorf("joining a cluster of a newer version: %v", err)
	}
	if _, err := members.Put(ctx, formatKey, fmt.Append(nil, Format)); err != nil {
		t.Fatal(err)
	}
}

// TestOlderNodesHearThisOne decodes what a node tells the others into the fields that nodes of format 1 first had. One of
// another kind would make them drop the whole message.
func TestOlderNodesHearThisOne(t *testing.T) {
	raw, err := json.Marshal(beat{
		Peer: Peer{ID: "x", Labels: []string{"zone=a"}, Load: 1, Draining: true, Started: time.Now()},
		Seq:  1, Acks: map[string]uint64{"b": 1}, Applied: map[string]uint64{"users": 1}, Beat: Format,
	})
	if err != nil {
		t.Fatal(err)
	}
	var older struct {
		ID       string
		Host     string
		Boot     string
		Version  string
		Address  string
		Cluster  string
		Started  time.Time
		Draining bool
		Load     float64
		Labels   map[string]string
		Alive    bool
		Member   bool
		Silent   time.Duration
		Seq      uint64
		Acks     map[string]uint64
		Applied  map[string]uint64
		Ends     bool
	}
	if err := json.Unmarshal(raw, &older); err != nil {
		t.Errorf("%s: %v", raw, err)
	}
}
