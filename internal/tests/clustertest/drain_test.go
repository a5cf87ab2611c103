package clustertest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

const modernCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dir_list","arguments":{"path":"."},` +
	`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":` +
	`{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`

// open begins a legacy session and returns its id.
func open(t *testing.T, url string) string {
	t.Helper()
	got, header, err := post(url, "", initialize)
	id := header.Get("Mcp-Session-Id")
	if err != nil || id == "" {
		t.Fatalf("initialize: %.300s, %v", got, err)
	}
	return id
}

// closeSession ends a session, by way of any node.
func closeSession(t *testing.T, url, id string) {
	t.Helper()
	r, err := http.NewRequest("DELETE", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mcp-Session-Id", id)
	a, err := client.Do(r)
	if err != nil || a.StatusCode != 200 {
		t.Fatalf("ending session %s: %v, %v", id, a, err)
	}
	a.Body.Close()
}

// load calls tools through a balancer, in sessions of every node and without one, until it is stopped. Every call
// must succeed.
type load struct {
	calls   atomic.Int64
	streams atomic.Int64 // how often a client has begun to listen
	stop    context.CancelFunc
	running sync.WaitGroup
}

func startLoad(t *testing.T, url string, sessions []string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	t.Cleanup(l.end)
	repeat := func(call func() bool) {
		l.running.Go(func() {
			for ctx.Err() == nil && call() {
				l.calls.Add(1)
			}
		})
	}
	for _, s := range append(sessions, "") {
		body, want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, 7), `"file_read"`
		if s == "" {
			body, want = modernCall, `"complete"`
		}
		repeat(func() bool {
			got, _, err := post(url, s, body)
			if err != nil || !strings.Contains(got, want) {
				t.Errorf("a call in session %q after %d calls: %.300s, %v", s, l.calls.Load(), got, err)
				return false
			}
			return true
		})
		if s == "" {
			continue
		}
		l.running.Go(func() { l.listen(ctx, t, url, s) })
	}
	return l
}

// listen keeps a stream of a session open, as clients do.
func (l *load) listen(ctx context.Context, t *testing.T, url, session string) {
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Mcp-Session-Id", session)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		a, err := http.DefaultTransport.RoundTrip(r)
		if ctx.Err() != nil {
			return
		}
		if err != nil || a.StatusCode != 200 {
			t.Errorf("listening in session %s: %v, %v", session, a, err)
			return
		}
		l.streams.Add(1)
		for lines := bufio.NewScanner(a.Body); lines.Scan(); {
		}
		a.Body.Close()
	}
}

func (l *load) end() {
	l.stop()
	l.running.Wait()
}

// TestDrain gives the sessions of each node to others, stops it and starts it again, while clients call: none of their
// calls fails. A call that runs keeps its session, and a node that drains opens none.
func TestDrain(t *testing.T) {
	nodes := startNodes(t, "shell")
	b := &balancer{nodes: nodes}
	url := b.listen(t)
	var sessions []string
	for _, n := range nodes {
		sessions = append(sessions, open(t, n.url), open(t, n.url))
	}

	// A call that runs is waited for.
	long := open(t, nodes[0].url)
	started, goOn := filepath.Join(nodes[0].dir, "work", "started"), filepath.Join(nodes[0].dir, "work", "go")
	answers := make(chan string, 1)
	go func() {
		got, _, err := post(url, long, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+
			`"shell_run","arguments":{"command":"touch %s; until [ -e %s ]; do sleep .05; done; echo it is over"}}}`,
			started, goOn))
		answers <- fmt.Sprint(got, err)
	}()
	eventually(t, "the long call runs", func() bool { _, err := os.Stat(started); return err == nil })
	if out, err := nodes[0].run(t, "cluster", "drain", "--wait", "3s").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "1 sessions, 0 jobs and 0 packages are left") {
		t.Errorf("draining while a call runs: %v, %s", err, out)
	}
	if got, _, err := post(url, sessions[0], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); err != nil ||
		!strings.Contains(got, `"file_read"`) {
		t.Errorf("a session that has moved: %.300s, %v", got, err)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; !strings.Contains(got, "it is over") {
		t.Errorf("the call that ran: %.500s", got)
	}
	nodes[0].command(t, "cluster", "drain", "--off")

	l := startLoad(t, url, append(sessions, long))
	eventually(t, "all clients listen", func() bool { return l.streams.Load() == int64(len(sessions)+1) })
	all := 0
	for i, n := range nodes {
		eventually(t, "clients call", func() bool { return l.calls.Load() > int64(100*(i+1)) || t.Failed() })
		listening, moved := l.streams.Load(), 0
		out := n.command(t, "cluster", "drain")
		if _, err := fmt.Sscan(out, &moved); err != nil {
			t.Errorf("draining node %d: %s", i, out)
		}
		all += moved
		eventually(t, "the clients of sessions that moved listen again", func() bool {
			return l.streams.Load() >= listening+int64(moved)
		})
		if out := nodes[(i+1)%3].command(t, "cluster", "status"); strings.Count(out, "draining") != 1 {
			t.Errorf("the status while node %d drains:\n%s", i, out)
		}
		if a, err := http.Get(strings.TrimSuffix(n.url, "/mcp") + "/ready"); err != nil || a.StatusCode != 503 {
			t.Errorf("node %d is ready while it drains: %v, %v", i, a, err)
		} else {
			a.Body.Close()
		}
		before := strings.Split(sessions[2*i], "-")[0]
		id := open(t, n.url)
		if strings.HasPrefix(id, before) {
			t.Errorf("node %d opens the session %s while it drains", i, id)
		}
		closeSession(t, n.url, id)
		b.down[i].Store(true)
		eventually(t, "the balancer has left the node out", func() bool { return b.open[i].Load() == 0 })
		if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := n.cmd.Wait(); err != nil {
			t.Errorf("node %d ended with %v", i, err)
		}
		n.start(t, n.cmd.Args[1:]...)
		n.awaitServing(t)
		b.down[i].Store(false)
		if t.Failed() {
			break
		}
	}
	l.end()
	if all < 4 { // those of at least two nodes
		t.Errorf("%d sessions have moved", all)
	}
	t.Logf("%d calls, %d streams", l.calls.Load(), l.streams.Load())
}
