package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// modern sends a request of the modern era of a client that follows tasks, and returns the answer.
func modern(t *testing.T, url, method, name string, params map[string]any) string {
	t.Helper()
	return modernAs(t, url, "", method, name, params)
}

// modernAs is modern with a token; "" is none.
func modernAs(t *testing.T, url, token, method, name string, params map[string]any) string {
	t.Helper()
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo":      map[string]string{"name": "test", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{
			"extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}},
		},
	}
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest("POST", url, strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		r.Header.Set(key, value)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	got, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func modernTool(t *testing.T, n *node, name string, args map[string]any) string {
	t.Helper()
	return modern(t, n.url, "tools/call", name, map[string]any{"name": name, "arguments": args})
}

// find returns what the parentheses of a pattern match in an answer.
func find(t *testing.T, pattern, in string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(in)
	if m == nil {
		t.Fatalf("no %s in %.600s", pattern, in)
	}
	return m[1]
}

// startJob starts a program that runs long as a job of a node, and returns the job's id.
func startJob(t *testing.T, n *node) string {
	t.Helper()
	return startJobAs(t, n, "")
}

// TestHandlesFromAnyNode starts a process on one node and reads, writes and stops it by way of the others. It does the
// same with a long output and a task. When the node has died, the answers say so.
func TestHandlesFromAnyNode(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "process")
	home := nodes[0]
	started := modernTool(t, home, "process_start", map[string]any{
		"command": "sh", "args": []string{"-c", "echo ready; read line; echo got $line; sleep 1000"},
	})
	id := find(t, `(process_[a-z2-7]{24}_[a-z2-7]{10})`, started)
	output := func(n *node) string { return modernTool(t, n, "process_output", map[string]any{"id": id}) }
	eventually(t, "another node reads what the process writes", func() bool {
		return strings.Contains(output(nodes[1]), "ready")
	})
	if got := modernTool(t, nodes[2], "process_input", map[string]any{"id": id, "input": "hello\n"}); strings.Contains(got, `"isError":true`) {
		t.Fatalf("writing to a process of another node: %.400s", got)
	}
	eventually(t, "a third node reads the answer", func() bool {
		return strings.Contains(output(nodes[2]), "got hello")
	})
	node := id[len(id)-10:]
	if got := modernTool(t, nodes[1], "process_list", map[string]any{}); !strings.Contains(got, id) ||
		!strings.Contains(got, `"node":"`+node+`"`) || strings.Contains(got, `"unreached"`) {
		t.Errorf("the processes of all nodes: %.900s", got)
	}

	long := modernTool(t, home, "process_run", map[string]any{"command": "seq", "args": []string{"100000", "140000"}})
	uri := find(t, `(gatehouse:///spool/[a-z2-7]+_[a-z2-7]{10})`, long)
	if got := modern(t, nodes[1].url, "resources/read", uri, map[string]any{"uri": uri}); !strings.Contains(got, "100000") {
		t.Errorf("reading a long output of another node: %.300s", got)
	}

	job := startJob(t, home)
	if got := modernTool(t, nodes[1], "job_wait", map[string]any{"id": job, "seconds": 0}); !strings.Contains(got, "working") {
		t.Errorf("a job of another node: %.300s", got)
	}

	home.cmd.Process.Kill()
	home.cmd.Wait()
	eventually(t, "the death of the node is told", func() bool {
		return strings.Contains(output(nodes[1]), "gone: ")
	})
	if got := modernTool(t, nodes[1], "process_list", map[string]any{}); strings.Contains(got, id) ||
		!strings.Contains(got, `"unreached":["`+node+`"]`) {
		t.Errorf("the processes of the nodes that are left: %.900s", got)
	}
	begun := time.Now()
	got := output(nodes[2])
	for range 9 {
		got = output(nodes[2])
	}
	if !strings.Contains(got, "not heard") && !strings.Contains(got, "not available") {
		t.Errorf("a process of a dead node: %.300s", got)
	}
	t.Logf("ten answers about a dead node took %v", time.Since(begun).Round(time.Millisecond))
	if got := modern(t, nodes[1].url, "resources/read", uri, map[string]any{"uri": uri}); !strings.Contains(got, "not heard") {
		t.Errorf("an output of a dead node: %.300s", got)
	}
	task := "abcdefghijklmnopqrstuvwxyz_" + id[len(id)-10:]
	if got := modern(t, nodes[1].url, "tasks/get", task, map[string]any{"taskId": task}); !strings.Contains(got, "is lost") {
		t.Errorf("a task of a dead node: %.300s", got)
	}
	for _, n := range nodes[1:] { // each says it by itself
		eventually(t, "most nodes agree that the job is lost", func() bool {
			got := modernTool(t, n, "job_wait", map[string]any{"id": job})
			return strings.Contains(got, "lost: node "+id[len(id)-10:]+" died while this job ran: process_run")
		})
		if got := modern(t, n.url, "tasks/get", job, map[string]any{"taskId": job}); !strings.Contains(got, "lost: node") {
			t.Errorf("the task of a job that is lost: %.400s", got)
		}
	}
	if got := modernTool(t, nodes[1], "process_output", map[string]any{"id": fmt.Sprint("process_x_", "aaaaaaaaaa")}); !strings.Contains(got, "not_found") {
		t.Errorf("a handle of a node that never was: %.300s", got)
	}
}
