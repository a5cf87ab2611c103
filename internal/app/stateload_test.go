package app

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// things mounts a hundred values that clients can follow.
func things(t *testing.T, a *App) (*state.Mount[map[string]int], map[string]int) {
	t.Helper()
	m, err := state.Attach[map[string]int](t.Context(), a.tree.state, "/public/things", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]int{}
	for i := range 100 {
		values[fmt.Sprint(i)] = 0
	}
	if _, err := m.Set(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	return m, values
}

// crowd holds clients of one era that follow a hundred paths, and the times at which each was notified.
type crowd struct {
	mu    sync.Mutex
	began time.Time
	took  []time.Duration
	ready sync.WaitGroup
	told  sync.WaitGroup
}

func (c *crowd) hears(m []byte) error {
	switch text := string(m); {
	case strings.Contains(text, "notifications/subscriptions/acknowledged"), strings.Contains(text, `"id":"sub"`):
		c.ready.Done()
	case strings.Contains(text, "notifications/resources/updated"):
		now := time.Now()
		c.mu.Lock()
		if c.took = append(c.took, now.Sub(c.began)); strings.Contains(text, `"value":`) {
			c.told.Done()
		}
		c.mu.Unlock()
	}
	return nil
}

// A thousand clients of both eras follow a hundred paths beside one client that does not read. Each is notified
// once, soon after the window.
func TestThousandClientsAreTold(t *testing.T) {
	a, client := live(t)
	m, values := things(t, a)
	who := protocol.Caller{Caller: tool.Caller{Principal: "root", Roles: []string{"admin"}}}
	release := make(chan struct{})
	defer close(release)
	stuck := a.engine.Pipe(who, func([]byte) error { <-release; return nil })
	go stuck.Receive(
		[]byte(
			`{"jsonrpc":"2.0","id":"ear","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["gatehouse:///public"]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		),
	)
	var c crowd
	const clients = 1000
	c.ready.Add(clients)
	c.told.Add(clients)
	for i := range clients {
		p := a.engine.Pipe(who, c.hears)
		t.Cleanup(func() { p.Close(nil) })
		uri := fmt.Sprintf("%s/things/%d", publicstate.PublicURI, i%100)
		if i%2 == 0 {
			p.Receive(
				fmt.Appendf(
					nil,
					`{"jsonrpc":"2.0","id":"ear","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":[%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
					uri,
				),
			)
			continue
		}
		p.Receive(
			[]byte(
				`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"1"}}}`,
			),
		)
		p.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
		p.Receive(
			fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
		)
	}
	c.ready.Wait()
	for k := range values {
		values[k] = 1
	}
	c.mu.Lock()
	c.began = time.Now()
	c.mu.Unlock()
	if _, err := m.Set(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	c.told.Wait()
	root := client("root", "admin")
	if v, _ := root.readPublic("default", publicstate.PublicURI+"/things/7"); v != 1.0 {
		t.Errorf("it is %v", v)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.took)
	if len(c.took) != clients {
		t.Errorf("%d were told", len(c.took))
	}
	t.Logf(
		"p50 %v, p99 %v after the window of 500 ms",
		c.took[clients/2]-500*time.Millisecond,
		c.took[clients*99/100]-500*time.Millisecond,
	)
}

// Clients connect, subscribe and disconnect, and leave nothing behind.
func TestClientsComeAndGo(t *testing.T) {
	rounds := 1000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 5000
	}
	a, client := live(t)
	m, _ := things(t, a)
	for i := range 300 { // as many changes as the tree keeps
		if err := state.Put(t.Context(), m, "0", i); err != nil {
			t.Fatal(err)
		}
	}
	root := client("root", "admin")
	visit := func(i int) {
		c := &tenant{t: t, in: make(chan json.RawMessage, 16)}
		c.pipe = a.engine.Pipe(
			protocol.Caller{Caller: tool.Caller{Principal: "root", Roles: []string{"admin"}}},
			func(m []byte) error {
				c.in <- slices.Clone(m)
				return nil
			},
		)
		c.handshake()
		c.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":"%s/things/%d"}}`,
				publicstate.PublicURI,
				i%100,
			),
		)
		expect(t, string(c.message()), `"id":"sub","result":{}`)
		c.listen(fmt.Sprintf("%s/things/%d", publicstate.PublicURI, i%77))
		c.pipe.Close(nil)
	}
	settled := func() (heap uint64, goroutines int) {
		t.Helper()
		eventually(t, "no session is left", func() bool {
			v, _ := root.readPublic("default", publicstate.PublicURI+"/sessions")
			return len(members(v)) == 0
		})
		runtime.GC()
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		return mem.HeapAlloc, runtime.NumGoroutine()
	}
	run := func() (uint64, int) {
		for i := range rounds {
			visit(i)
		}
		return settled()
	}
	_, before := run()
	half, _ := run()
	full, after := run()
	t.Logf("after %d and %d: %d and %d bytes, %d goroutines, before %d", rounds, 2*rounds, half, full, after, before)
	if after > before+5 { // those of the last sessions may still be ending
		eventually(
			t,
			fmt.Sprintf("the goroutines are %d again, and not %d", before, after),
			func() bool { return runtime.NumGoroutine() <= before+5 },
		)
	}
	if float64(full) > 1.05*float64(half)+1<<20 { // the changes that the tree keeps have no fixed size
		t.Errorf("%d bytes, %d after half of them", full, half)
	}
	if open := a.tree.watches.Len(); open != 0 {
		t.Errorf("%d watches are open", open)
	}
}
