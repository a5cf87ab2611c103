package clustertest

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// inContext lists the tools that a node offers in a context.
func inContext(t *testing.T, n *node, context string) string {
	t.Helper()
	r, err := http.NewRequest("POST", n.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":`+
		`{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list", "X-Mcp-Context": context,
	} {
		r.Header.Set(name, value)
	}
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestContextsOnAllNodes creates, changes and deletes a context on different nodes; each change is on all nodes when its
// command returns, and on a node that was away once it serves again.
func TestContextsOnAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	nodes[0].command(t, "context", "create", "small", "--tool", "dir_list")
	for i, n := range nodes {
		if got := inContext(t, n, "small"); !strings.Contains(got, `"dir_list"`) || strings.Contains(got, `"file_read"`) {
			t.Errorf("the tools of the context on node %d: %.300s", i, got)
		}
	}
	away := nodes[0]
	away.cmd.Process.Signal(syscall.SIGTERM)
	away.cmd.Wait()
	on := listen(t, nodes[2], "small", map[string]any{"toolsListChanged": true})
	nodes[1].command(t, "context", "update", "small", "--tool", "dir_list,file_read")
	eventually(t, "a client of another node is told that its list has changed", func() bool {
		return on.heard("tools/list_changed")
	})
	if got := inContext(t, nodes[2], "small"); !strings.Contains(got, `"file_read"`) {
		t.Errorf("the tools of the changed context on another node: %.300s", got)
	}
	away.start(t, away.cmd.Args[1:]...)
	away.awaitServing(t)
	if got := inContext(t, away, "small"); !strings.Contains(got, `"file_read"`) {
		t.Errorf("the tools of the context on the node that was away: %.300s", got)
	}
	away.command(t, "context", "delete", "small")
	for i, n := range nodes {
		if got := inContext(t, n, "small"); strings.Contains(got, `"dir_list"`) {
			t.Errorf("node %d offers a context that was deleted: %.300s", i, got)
		}
	}
}
