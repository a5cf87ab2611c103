package statelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/state"
	"gatehouse/internal/state/statelogtest"
)

func open(t *testing.T, n *cluster.Node, bucket string) *Log {
	t.Helper()
	l, err := Open(t.Context(), n, bucket, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLog(t *testing.T) {
	all := nodetest.Start(t)
	t.Run("the contract of logs", func(t *testing.T) { testContract(t, all) })
	t.Run("nodes have the same state", func(t *testing.T) { testSameState(t, all) })
	t.Run("changes that are lost", func(t *testing.T) { testLost(t, all[0]) })
}

// testLost opens a log on a node that has seen what the cluster has, and then more than it has.
func testLost(t *testing.T, n *cluster.Node) {
	mark := filepath.Join(t.TempDir(), "mounts.json")
	reopen := func() error {
		l, err := Open(t.Context(), n, "lost", mark, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer l.Close()
		at := l.known("m").revision
		_, err = l.Append(t.Context(), "m", at, state.Patch{{Kind: state.Replace, Value: fmt.Sprint(at)}})
		return err
	}
	for range 2 {
		if err := reopen(); err != nil {
			t.Fatal(err)
		}
	}
	if raw, err := os.ReadFile(mark); err != nil || string(raw) != `{"m":2}` {
		t.Errorf("the revisions of the node are %s, %v", raw, err)
	}
	if err := os.WriteFile(mark, []byte(`{"m":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reopen(); !errors.Is(err, cluster.ErrLost) ||
		!strings.Contains(err.Error(), "revision 3 of m, of which the cluster has 2") {
		t.Errorf("the cluster lacks a revision: %v", err)
	}
}

// testContract holds a log in the cluster to the contract of all logs.
func testContract(t *testing.T, all []*cluster.Node) {
	made := map[state.Log]string{}
	var mu sync.Mutex
	again := func(t *testing.T, bucket string) state.Log {
		l := open(t, all[0], bucket)
		mu.Lock()
		defer mu.Unlock()
		made[l] = bucket
		return l
	}
	statelogtest.Run(t, statelogtest.Options{
		Changes: 200,
		Make:    func(t *testing.T) state.Log { return again(t, fmt.Sprintf("log-%d", time.Now().UnixNano())) },
		Again: func(t *testing.T, l state.Log) state.Log {
			l.(*Log).Close()
			mu.Lock()
			bucket := made[l]
			mu.Unlock()
			return again(t, bucket)
		},
	})
}

// testSameState has three nodes change one mount at once. Each has all changes in the end, also
// after one node has died.
func testSameState(t *testing.T, all []*cluster.Node) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var mounts []*state.Mount[map[string]int]
	for _, n := range all {
		tree := state.New(state.Options{Log: open(t, n, "shared")})
		running.Go(func() { tree.Run(ctx) })
		m, err := state.Attach[map[string]int](ctx, tree, "/private/numbers", state.Durable)
		if err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, m)
	}
	const each = 20
	var writers sync.WaitGroup
	for i, m := range mounts {
		writers.Go(func() {
			for k := range each {
				_, err := m.Update(ctx, state.Any, func(v *map[string]int) error {
					if *v == nil {
						*v = map[string]int{}
					}
					(*v)["sum"]++
					(*v)[fmt.Sprintf("%d.%d", i, k)] = k
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	has := func(m *state.Mount[map[string]int], sum, members int) func() bool {
		return func() bool {
			v, _, err := m.Get()
			return err == nil && v["sum"] == sum && len(v) == members
		}
	}
	for i, m := range mounts {
		eventually(t, fmt.Sprintf("node %d has all changes", i), has(m, 3*each, 3*each+1))
	}
	all[2].Close()
	eventually(t, "two nodes go on", func() bool {
		_, err := mounts[0].Update(ctx, state.Any, func(v *map[string]int) error { (*v)["sum"] = 1000; return nil })
		return err == nil
	})
	eventually(t, "the second node has it", has(mounts[1], 1000, 3*each+1))
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("after a minute it is not so that %s", what)
}
