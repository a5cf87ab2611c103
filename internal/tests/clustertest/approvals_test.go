package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/sqllog"
	"gatehouse/internal/files/sqlfile"
)

// startStores starts three nodes, each with a store of approvals.
func startStores(t *testing.T) []*approvals.Store {
	t.Helper()
	program := filepath.Join(engine(t), cluster.Program)
	nodes, errs := make([]*cluster.Node, 3), make([]error, 3)
	listen := []string{"127.0.0.1:" + freePort(t), "127.0.0.1:" + freePort(t), "127.0.0.1:" + freePort(t)}
	var starting sync.WaitGroup
	for i := range nodes {
		starting.Go(func() {
			nodes[i], errs[i] = cluster.Start(t.Context(), cluster.Options{
				Name: "test", Listen: listen[i], Join: listen[:min(i, 1)], Dir: filepath.Join(t.TempDir(), fmt.Sprint(i)),
				Program: program, Lease: 8 * time.Second,
			})
		})
	}
	starting.Wait()
	for _, n := range nodes {
		if n != nil {
			t.Cleanup(n.Close)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var stores []*approvals.Store
	for _, n := range nodes {
		store := approvals.Open(filepath.Join(t.TempDir(), "approvals.db"), approvals.Options{Look: 20 * time.Millisecond})
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		if err := store.Replicate(func(f *sqlfile.File) error {
			l, err := sqllog.Open(ctx, n, "approvals", f, slog.New(slog.DiscardHandler), nil)
			if err == nil {
				running.Go(func() { l.Run(ctx) })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { store.Run(ctx) })
		t.Cleanup(func() { stop(); running.Wait(); store.Close() })
		stores = append(stores, store)
	}
	return stores
}

// TestApprovalsOnAllNodes asks on one node and decides on another; the approval is then used by all nodes at once, and
// one of them has it.
func TestApprovalsOnAllNodes(t *testing.T) {
	t.Parallel()
	stores := startStores(t)
	decided := make(chan approvals.Request, 1)
	asked, err := stores[0].Ask("ada", "file_write", "rule", approvals.Caller{Credential: "t_1", Session: "s"},
		[]byte(`{"path":"a"}`), func(r approvals.Request) { decided <- r })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "another node knows the request", func() bool {
		r, err := stores[1].Get(asked.ID)
		return err == nil && r.Caller == asked.Caller && string(r.Args) == string(asked.Args)
	})
	// Two operators decide at once, at two nodes. One of them does.
	var allowed, refused atomic.Bool
	var deciding sync.WaitGroup
	for i, store := range stores[1:] {
		deciding.Go(func() {
			_, err := store.Decide(asked.ID, i == 0, "operator")
			switch {
			case err == nil && i == 0:
				allowed.Store(true)
			case err == nil:
				refused.Store(true)
			case !errors.Is(err, approvals.ErrDecided) && !errors.Is(err, approvals.ErrNotFound):
				t.Errorf("node %d: %v", i+1, err)
			}
		})
	}
	deciding.Wait()
	if allowed.Load() == refused.Load() {
		t.Fatalf("allowed %v, refused %v", allowed.Load(), refused.Load())
	}
	want, uses := approvals.Refused, int32(0)
	if allowed.Load() {
		want, uses = approvals.Allowed, 1
	}
	select {
	case r := <-decided:
		if r.State != want {
			t.Errorf("the node that asked hears %s, expected %s", r.State, want)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("the node that asked does not hear of the decision")
	}
	var spent, once atomic.Int32
	var using sync.WaitGroup
	for i, store := range stores {
		using.Go(func() {
			if ok, err := store.Spend(asked, "ada", "file_write"); err != nil {
				t.Errorf("node %d: %v", i, err)
			} else if ok {
				spent.Add(1)
			}
			if ok, err := store.Once("answer", time.Hour); err != nil {
				t.Errorf("node %d: %v", i, err)
			} else if ok {
				once.Add(1)
			}
		})
	}
	using.Wait()
	if spent.Load() != uses || once.Load() != 1 {
		t.Errorf("the approval was used %d times, expected %d; the answer %d times, expected 1", spent.Load(), uses,
			once.Load())
	}
}
