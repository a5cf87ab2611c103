package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// silent is an engine whose first watches are told of nothing after they began, and do not end.
type silent struct {
	jetstream.KeyValue
	watches atomic.Int32
}

func (s *silent) WatchAll(ctx context.Context, o ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := s.KeyValue.WatchAll(ctx, o...)
	if n := s.watches.Add(1); err == nil && n <= 2 {
		return &silentWatcher{w, make(chan jetstream.KeyValueEntry), n == 2}, nil
	}
	return w, err
}

type silentWatcher struct {
	jetstream.KeyWatcher
	none  chan jetstream.KeyValueEntry
	ended bool
}

func (w *silentWatcher) Updates() <-chan jetstream.KeyValueEntry {
	if w.ended {
		w.ended = false
		close(w.none)
	}
	return w.none
}

// TestAWatchThatIsToldNothing watches a bucket while the engine tells the first watch nothing and ends the second.
func TestAWatchThatIsToldNothing(t *testing.T) {
	nodes := startNodes(t, three(t)...)
	ctx, stop := context.WithCancel(t.Context())
	b, err := nodes[0].Bucket(ctx, "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	engine := &silent{KeyValue: b.kv}
	watched := &Bucket{n: b.n, name: b.name, kv: engine}
	other, err := nodes[1].Bucket(ctx, "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var seen sync.Map
	var running sync.WaitGroup
	running.Go(func() {
		for r := range watched.Watch(ctx) {
			seen.Store(r.Key, string(r.Value))
		}
	})
	defer running.Wait()
	defer stop()
	for i := range 3 {
		if _, err := other.Put(ctx, fmt.Sprint("key", i), []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all records are seen", func() bool {
		n := 0
		seen.Range(func(_, _ any) bool { n++; return true })
		return n == 3
	})
	// The third watch works, and is not begun again.
	if _, err := other.Put(ctx, "last", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last record is seen", func() bool { _, ok := seen.Load("last"); return ok })
	if n := engine.watches.Load(); n != 3 {
		t.Errorf("%d watches were begun, expected 3", n)
	}
}
