package cluster

import (
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
	if _, err := members.Put(ctx, formatKey, []byte(fmt.Sprint(Format+1))); err != nil {
		t.Fatal(err)
	}
	n, err := Start(ctx, o)
	if n != nil {
		n.Close()
	}
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "install the newer version") {
		t.Errorf("joining a cluster of a newer version: %v", err)
	}
	if _, err := members.Put(ctx, formatKey, []byte(fmt.Sprint(Format))); err != nil {
		t.Fatal(err)
	}
}
