// Package nodetest starts clusters for the tests of packages that need one.
package nodetest

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/cluster"
)

// Start starts a cluster of three nodes, which ends with the test, with options that may be changed. It skips the test
// where the engine is not built, but not in CI.
func Start(t testing.TB, change ...func(*cluster.Options)) []*cluster.Node {
	t.Helper()
	program := engine(t)
	nodes, errs := make([]*cluster.Node, 3), make([]error, 3)
	var listen [3]string
	for i := range listen {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listen[i] = l.Addr().String()
		l.Close()
	}
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() {
			o := cluster.Options{
				Name: "test", Listen: listen[i], Join: listen[:min(i, 1)], Dir: filepath.Join(t.TempDir(), fmt.Sprint(i)),
				Program: program, Lease: 8 * time.Second, Log: slog.New(slog.DiscardHandler),
			}
			for _, f := range change {
				f(&o)
			}
			nodes[i], errs[i] = cluster.Start(t.Context(), o)
		})
	}
	all.Wait()
	for _, n := range nodes {
		if n != nil {
			t.Cleanup(n.Close)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// engine returns the program that make setup builds below the folder of go.mod.
func engine(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	program := filepath.Join(dir, ".tools", cluster.Program)
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; make setup builds it", err)
		}
		t.Skip("without the engine: make setup builds it")
	}
	return program
}
