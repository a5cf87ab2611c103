package clustertest

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestLimitsOfAllNodes floods all nodes at once, which together allow the rate of one; then one node, which borrows the
// parts of the others. Wrong passwords are counted over all nodes.
func TestLimitsOfAllNodes(t *testing.T) {
	const rate, burst = 20, 30
	t.Setenv("GATEHOUSE_LIMITS_RATE", "20")
	t.Setenv("GATEHOUSE_LIMITS_BURST", "30")
	nodes := startNodes(t)
	var allowed atomic.Int64
	begun := time.Now()
	flood := func(n *node) {
		r, err := http.Post(n.url, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusTooManyRequests {
			allowed.Add(1)
		}
	}
	// A request that is held for its turn was counted when it came: a second of requests is under way at most.
	most := func() float64 { return burst + 3 + rate*(time.Since(begun).Seconds()+1) }
	during := func(span time.Duration, nodes ...*node) {
		var all sync.WaitGroup
		for _, n := range nodes {
			for range 16 {
				all.Go(func() {
					for end := time.Now().Add(span); time.Now().Before(end); {
						flood(n)
					}
				})
			}
		}
		all.Wait()
	}
	during(5*time.Second, nodes...)
	if got := float64(allowed.Load()); got > most() {
		t.Errorf("all nodes together allowed %.0f requests in %v, at most %.0f", got, time.Since(begun), most())
	}
	t.Logf("all nodes allowed %d in %v", allowed.Load(), time.Since(begun).Round(time.Millisecond))
	if got, _, err := post(nodes[0].url, "", initialize); err != nil {
		t.Errorf("%.200s, %v", got, err)
	}
	eventually(t, "one node has more than its third", func() bool {
		begun = time.Now()
		allowed.Store(0)
		during(5*time.Second, nodes[1])
		t.Logf("one node allowed %d in %v", allowed.Load(), time.Since(begun).Round(time.Millisecond))
		if got := float64(allowed.Load()); got > most() {
			t.Errorf("one node allowed %.0f requests, at most %.0f", got, most())
		}
		return float64(allowed.Load()) > 1.5*(burst+3+rate*time.Since(begun).Seconds())/3
	})

	// Of four tries at three nodes at least one is refused, although none of them has had more than two.
	login := func(n *node) int {
		r, err := http.Post(strings.TrimSuffix(n.url, "/mcp")+"/auth/login", "application/json",
			strings.NewReader(`{"user":"ada","password":"a wrong password"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		io.Copy(io.Discard, r.Body)
		return r.StatusCode
	}
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	eventually(t, "a wrong password counts on all nodes", func() bool {
		for _, n := range nodes {
			if login(n) == http.StatusTooManyRequests {
				return true
			}
		}
		if login(nodes[0]) == http.StatusTooManyRequests {
			return true
		}
		time.Sleep(21 * time.Second) // the window, so that no node has three tries in one by itself
		return false
	})
}
