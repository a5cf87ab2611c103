package cluster

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTrails recognises a write that one leader has refused and another one made.
func TestTrails(t *testing.T) {
	made := trail{}
	for i, id := range []string{"a", "b", "c"} {
		made = trail{uint64(10 * (i + 1)), made.next(made.revision, id)}
	}
	if made.writes != "20:c 10:b 0:a" {
		t.Errorf("the trail is %q", made.writes)
	}
	for _, c := range []struct {
		replaced    uint64
		id          string
		at          uint64
		made, known bool
	}{
		{20, "c", 30, true, true}, {10, "b", 20, true, true}, {10, "x", 20, false, true}, {0, "a", 10, true, true},
		{30, "d", 0, false, false}, {15, "b", 0, false, false},
	} {
		at, is, known := made.wrote(c.replaced, c.id)
		if is != c.made || known != c.known || known && at != c.at {
			t.Errorf("%+v: %d, %v, %v", c, at, is, known)
		}
	}
	for i := range 100 {
		made = trail{uint64(100 + i), made.next(made.revision, "n")}
	}
	if n := len(strings.Fields(made.writes)); n != mostWrites {
		t.Errorf("a trail has %d writes", n)
	}
	if _, _, known := made.wrote(20, "c"); known {
		t.Error("it knows of a write that it does not name any more")
	}
}

// testContention has all nodes count in one record at once: no change is lost or made twice, each refusal is certain,
// and each node gets its turn.
func testContention(t *testing.T, nodes ...*Node) {
	ctx := t.Context()
	const each = 100
	var all sync.WaitGroup
	var mu sync.Mutex
	var refused int
	begin := time.Now()
	for i, n := range nodes {
		b, err := n.Bucket(ctx, "things", BucketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for made := 0; made < each; {
				r, err := b.Get(ctx, "count")
				number, _ := strconv.Atoi(string(r.Value))
				next := []byte(strconv.Itoa(number + 1))
				if errors.Is(err, ErrNotFound) {
					_, err = b.Create(ctx, "count", next)
				} else if err == nil {
					_, err = b.Update(ctx, "count", next, r.Revision)
				}
				switch {
				case err == nil:
					made++
				case errors.Is(err, ErrConflict):
					mu.Lock()
					refused++
					mu.Unlock()
				default:
					t.Errorf("node %d: %v", i, err)
					return
				}
			}
			t.Logf("node %d was done after %v", i, time.Since(begin).Round(time.Millisecond))
		})
	}
	all.Wait()
	b, err := nodes[0].Bucket(ctx, "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Confirmed(ctx, "count")
	if err != nil || string(r.Value) != strconv.Itoa(each*len(nodes)) {
		t.Errorf("%d changes were made, %q are there, %v", each*len(nodes), r.Value, err)
	}
	t.Logf("%.0f changes a second, %d refused", float64(each*len(nodes))/time.Since(begin).Seconds(), refused)
}
