package clustertest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// listener is a modern client that listens.
type listener struct {
	mu    sync.Mutex
	all   strings.Builder
	ended bool
}

// listen subscribes to notifications until the test ends, and returns when the node has acknowledged it.
func listen(t *testing.T, n *node, scope string, notifications map[string]any) *listener {
	t.Helper()
	return listenAs(t, n, "", scope, notifications)
}

// listenAs is listen with a token.
func listenAs(t *testing.T, n *node, token, scope string, notifications map[string]any) *listener {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": map[string]any{
			"notifications": notifications,
			"_meta": map[string]any{
				"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
				"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "test", "version": "1"},
				"io.modelcontextprotocol/clientCapabilities": map[string]any{},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "POST", n.url, strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen",
	} {
		r.Header.Set(key, value)
	}
	if scope != "" {
		r.Header.Set("X-Mcp-Context", scope)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	a, err := new(http.Client).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{}
	var reading sync.WaitGroup
	reading.Go(func() { l.read(a.Body) })
	t.Cleanup(func() {
		stop()
		a.Body.Close()
		reading.Wait()
	})
	eventually(t, "the subscription is acknowledged", func() bool { return l.heard("acknowledged") })
	return l
}

// read remembers what comes until the stream ends.
func (l *listener) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		l.mu.Lock()
		l.all.WriteString(lines.Text() + "\n")
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// hasEnded reports whether the node has ended the stream.
func (l *listener) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *listener) heard(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.all.String(), what)
}

// openStream opens the event stream of a session until the test ends.
func openStream(t *testing.T, n *node, session string) *listener {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "GET", n.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Accept": "text/event-stream", "Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25",
	} {
		r.Header.Set(key, value)
	}
	a, err := new(http.Client).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	s := &listener{}
	var reading sync.WaitGroup
	reading.Go(func() { s.read(a.Body) })
	t.Cleanup(func() {
		stop()
		a.Body.Close()
		reading.Wait()
	})
	return s
}

// count returns how often a text was heard.
func (l *listener) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), what)
}

// TestStateOnAllNodes starts a process on one node, of which clients on the others read and hear.
func TestStateOnAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "process")
	const uri = "gatehouse:///public/processes"
	read := func(n *node) string { return modern(t, n.url, "resources/read", uri, map[string]any{"uri": uri}) }
	for _, n := range nodes {
		read(n)
	}
	on := listen(t, nodes[1], "", map[string]any{"resourceSubscriptions": []string{uri}})
	started := modernTool(t, nodes[0], "process_start", map[string]any{"command": "sleep", "args": []string{"1000"}})
	id := find(t, `(process_[a-z2-7]{24}_[a-z2-7]{10})`, started)
	eventually(t, "a client of another node hears of the process", func() bool { return on.heard(id) })
	var revisions []string
	for i, n := range nodes {
		eventually(t, "a node reads the process", func() bool { return strings.Contains(read(n), id) })
		got := read(n)
		if !strings.Contains(got, `\"node\": \"`+id[len(id)-10:]) {
			t.Errorf("the processes by node %d: %.600s", i, got)
		}
		revisions = append(revisions, find(t, `"gatehouse/revision":"([^"]+)"`, got))
	}
	if len(slices.Compact(revisions)) != 1 {
		t.Errorf("nodes that show the same name its revision %q", revisions)
	}
	// Nodes do not know what a client has read elsewhere, so that it is told to read again.
	late := listen(t, nodes[2], "", map[string]any{"resourceSubscriptions": []string{"gatehouse:///public/builds"}})
	eventually(t, "a client that may have read elsewhere reads again", func() bool { return late.heard("resources/updated") })

	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	eventually(t, "what was on a dead node is gone", func() bool { return !strings.Contains(read(nodes[1]), id) })
}

// TestTasksFromAnyNode follows a task of a session on one node in a session on another one.
func TestTasksFromAnyNode(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "process")
	here, there := open(t, nodes[0].url), open(t, nodes[1].url)
	send := func(n *node, session, method, params string) string {
		t.Helper()
		got, _, err := post(n.url, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":%q,"params":%s}`, method, params))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	start := func(script string) string {
		t.Helper()
		return find(t, `"taskId":"([a-z2-7]+_[a-z2-7]{10})"`, send(nodes[0], here, "tools/call", fmt.Sprintf(
			`{"name":"process_run","arguments":{"command":"sh","args":["-c",%q]},"task":{}}`, script)))
	}
	task, long := start("sleep 1; echo it has run"), start("sleep 1000")
	if got := send(nodes[1], there, "tasks/result", `{"taskId":"`+task+`"}`); !strings.Contains(got, "it has run") {
		t.Errorf("the result of a task of another node: %.600s", got)
	}
	if got := send(nodes[1], there, "tasks/get", `{"taskId":"`+task+`"}`); !strings.Contains(got, `"completed"`) {
		t.Errorf("a task of another node: %.600s", got)
	}
	if got := send(nodes[1], there, "tasks/list", `{}`); !strings.Contains(got, task) || !strings.Contains(got, long) {
		t.Errorf("the tasks of all nodes: %.600s", got)
	}
	if got := modernTool(t, nodes[2], "job_list", map[string]any{}); !strings.Contains(got, task) ||
		!strings.Contains(got, long) {
		t.Errorf("the jobs of all nodes: %.600s", got)
	}
	if got := send(nodes[1], there, "tasks/cancel", `{"taskId":"`+long+`"}`); !strings.Contains(got, `"cancelled"`) {
		t.Errorf("cancelling a task of another node: %.600s", got)
	}
	lost := start("sleep 1000")
	answer := make(chan string, 1)
	go func() {
		got, _, err := post(nodes[1].url, there, `{"jsonrpc":"2.0","id":6,"method":"tasks/result","params":{"taskId":"`+lost+`"}}`)
		answer <- fmt.Sprint(got, err)
	}()
	eventually(t, "the task is known to both", func() bool {
		return strings.Contains(send(nodes[1], there, "tasks/get", `{"taskId":"`+lost+`"}`), lost)
	})
	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	if got := <-answer; !strings.Contains(got, "error") || !strings.Contains(got, "node") {
		t.Errorf("waiting for a task whose node dies: %.600s", got)
	}
	if got := send(nodes[1], there, "tasks/get", `{"taskId":"`+lost+`"}`); !strings.Contains(got, "lost") {
		t.Errorf("a task of a dead node: %.600s", got)
	}
}
