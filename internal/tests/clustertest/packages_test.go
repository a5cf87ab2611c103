package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/packages/packagestest"
)

// administrator returns the token of an administrator of all nodes.
func administrator(t *testing.T, n *node) string {
	t.Helper()
	n.command(t, "user", "add", "root", "--no-password", "--role", "admin")
	return strings.TrimSpace(n.command(t, "token", "create", "--user", "root", "--name", "test"))
}

// callAs calls a tool in the modern era with a token, and returns the answer.
func (n *node) callAs(t *testing.T, token, name string, args map[string]any) string {
	t.Helper()
	return n.callIn(t, "", token, name, args)
}

// callIn is callAs in a context; "" is the default one.
func (n *node) callIn(t *testing.T, context, token, name string, args map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{
			"name": name, "arguments": args,
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
	r, err := http.NewRequest("POST", n.url, strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name,
		"Authorization": "Bearer " + token,
	} {
		r.Header.Set(key, value)
	}
	if context != "" {
		r.Header.Set("X-Mcp-Context", context)
	}
	a, err := client.Do(r)
	if err != nil {
		return err.Error()
	}
	defer a.Body.Close()
	got, err := io.ReadAll(a.Body)
	if err != nil {
		return err.Error()
	}
	return string(got)
}

// installPackage installs a package from a folder that only exists on one node, and waits for it.
func (n *node) installPackage(t *testing.T, token, id string, more map[string]any) {
	t.Helper()
	source := filepath.Join(n.dir, "work", "source-"+id)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s\n", self)
	if err := os.MkdirAll(source, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "start.sh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	env := packagestest.Environment("good")
	env["GATEHOUSE_TEST_NODE"] = ""
	args := map[string]any{
		"id": id, "source": "folder:" + source, "command": "./start.sh", "env": env, "trust": true, "confirm": id,
	}
	maps.Copy(args, more)
	begun := n.callAs(t, token, "package_install", args)
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, begun)
	done := n.callAs(t, token, "job_wait", map[string]any{"id": job})
	if !strings.Contains(done, `"tools":[`) {
		t.Fatalf("the installation: %.2000s", done)
	}
	if err := os.RemoveAll(source); err != nil {
		t.Fatal(err)
	}
}

// homeOf is where the server of a package ran, of the answer of its tool where: the folder of a node.
var homeOf = regexp.MustCompile(`home=([^ ]+)`)

// TestPackagesOnAllNodes installs a package on one node, whose tools all nodes have; changes it on two nodes at once;
// approves on one node what its server changed; and removes it on a third node.
func TestPackagesOnAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	nodes[0].installPackage(t, token, "up", nil)

	// The server adds a tool. It waits for an approval on all nodes, and one approval is enough.
	eventually(t, "a node that has not installed the package calls it", func() bool {
		return strings.Contains(nodes[1].callAs(t, token, "up_grow", map[string]any{}), `"grown"`)
	})
	waits := func(n *node) bool {
		return strings.Contains(n.callAs(t, token, "package_changes", map[string]any{"id": "up"}), "up_grown")
	}
	for _, n := range nodes {
		eventually(t, "every node has the new tool in quarantine", func() bool { return waits(n) })
	}
	if got := nodes[2].callAs(t, token, "package_approve", map[string]any{
		"id": "up", "tools": []string{"up_grown"}, "confirm": "up",
	}); strings.Contains(got, `"isError":true`) {
		t.Fatalf("the approval: %.600s", got)
	}
	for _, n := range nodes {
		eventually(t, "the approval holds on every node", func() bool { return !waits(n) })
	}

	for i, n := range nodes {
		eventually(t, "every node calls the package", func() bool {
			got := n.callAs(t, token, "up_where", map[string]any{})
			return homeOf.MatchString(got)
		})
		if got := n.callAs(t, token, "package_list", map[string]any{}); !strings.Contains(got, `"up"`) &&
			!strings.Contains(got, `\"up\"`) {
			t.Errorf("node %d does not list the package: %.400s", i, got)
		}
	}

	// Of two nodes that change the package at once, both or one succeed, and then all nodes have the same.
	choices := []string{"up_raw", "up_twice"}
	answers := make([]string, 2)
	var changing sync.WaitGroup
	for i, name := range choices {
		changing.Go(func() {
			answers[i] = nodes[i].callAs(t, token, "package_tools", map[string]any{"id": "up", "off": []string{name}})
		})
	}
	changing.Wait()
	wrong := 0
	for i, got := range answers {
		if strings.Contains(got, `"isError":true`) {
			wrong++
			if !strings.Contains(got, "another node has changed package up") {
				t.Errorf("node %d: %.500s", i, got)
			}
		}
	}
	if wrong == 2 {
		t.Errorf("no node could change the package: %q", answers)
	}
	chosen := func(n *node) string {
		var off []string
		for _, name := range choices {
			if got := n.callAs(t, token, name, map[string]any{}); strings.Contains(got, "not found") ||
				strings.Contains(got, "nknown tool") {
				off = append(off, name)
			}
		}
		return fmt.Sprint(off)
	}
	eventually(t, "all nodes have the same tools", func() bool {
		first := chosen(nodes[0])
		return first != "[]" && first == chosen(nodes[1]) && first == chosen(nodes[2])
	})

	folder := func(n *node) string { return filepath.Join(n.dir, "data", "gatehouse", "packages", "up") }
	if _, err := os.Stat(folder(nodes[0])); err != nil {
		t.Error(err)
	}
	if got := nodes[2].callAs(t, token, "package_remove", map[string]any{"id": "up", "confirm": "up"}); strings.Contains(
		got, `"isError":true`) {
		t.Fatalf("the removal: %.600s", got)
	}
	for i, n := range nodes {
		eventually(t, fmt.Sprintf("node %d has nothing of the package", i), func() bool {
			_, err := os.Stat(folder(n))
			return os.IsNotExist(err)
		})
		if got := n.callAs(t, token, "package_info", map[string]any{"id": "up"}); !strings.Contains(got, "no package") {
			t.Errorf("node %d still has the package: %.300s", i, got)
		}
	}
}

// where returns the index of the node on which the server of a package runs, as its tool where says when another node
// calls it; -1 if the call fails.
func where(t *testing.T, nodes []*node, from *node, token, id string) (int, string) {
	t.Helper()
	got := from.callAs(t, token, id+"_where", map[string]any{})
	m := homeOf.FindStringSubmatch(got)
	if m == nil {
		return -1, got
	}
	for i, n := range nodes {
		if strings.HasPrefix(m[1], n.dir+"/") {
			return i, got
		}
	}
	return -1, got
}

// sandboxByLabel creates a sandbox on the node that has a label, by a request to another one, and uses it by a third.
func sandboxByLabel(t *testing.T, nodes []*node, token string) {
	t.Helper()
	create := func(label string) string {
		return nodes[0].callAs(t, token, "sandbox_create", map[string]any{"labels": []string{label}})
	}
	if got := create("zone=moon"); !strings.Contains(got, "zone=n0, zone=n1, zone=n2") {
		t.Errorf("a sandbox with a label that no node has: %.600s", got)
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil || os.Getuid() != 0 {
		return // no driver may work
	}
	made := create("zone=n2")
	id := find(t, `"sandbox_id":"([^"]+)"`, made)
	if own := nodeID(t, nodes[2]); !strings.HasSuffix(id, "_"+own) {
		t.Errorf("the sandbox %s is not on node %s: %.300s", id, own, made)
	}
	got := nodes[1].callAs(t, token, "sandbox_exec", map[string]any{"sandbox_id": id, "command": "echo it is $((6*7))"})
	if !strings.Contains(got, "it is 42") {
		t.Errorf("a command in the sandbox by way of another node: %.500s", got)
	}
}

// nodeID returns the id of a node.
func nodeID(t *testing.T, n *node) string {
	t.Helper()
	id, err := cluster.IDOf(filepath.Join(n.dir, "data", "gatehouse", "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestPackagesMoveWithNodes runs packages each on one node, by its labels or by load; kills the node of one during a
// call, and drains the next one.
func TestPackagesMoveWithNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package", "sandbox")
	token := administrator(t, nodes[0])
	sandboxByLabel(t, nodes, token)
	env := packagestest.Environment("resources")
	env["GATEHOUSE_TEST_NODE"] = ""
	lists := listenAs(t, nodes[1], token, "", map[string]any{"toolsListChanged": true})
	nodes[0].installPackage(t, token, "up", map[string]any{"env": env})
	eventually(t, "a client of another node hears that there are more tools", func() bool {
		return lists.heard("tools/list_changed")
	})
	// With other rights a client has other lists: its stream ends on every node, and it opens another one.
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	ada := strings.TrimSpace(nodes[0].command(t, "token", "create", "--user", "ada", "--name", "ada"))
	adas := listenAs(t, nodes[2], ada, "", map[string]any{"toolsListChanged": true})
	nodes[1].command(t, "user", "roles", "ada", "admin")
	eventually(t, "the stream of a user with other rights ends on another node", adas.hasEnded)
	nodes[0].installPackage(t, token, "lab", map[string]any{"labels": []string{"zone=n2"}})
	got := nodes[0].callAs(t, token, "package_install", map[string]any{
		"id": "moon", "command": "true", "trust": true, "confirm": "moon", "labels": []string{"zone=moon"},
	})
	if !strings.Contains(got, "zone=moon") || !strings.Contains(got, "zone=n0, zone=n1, zone=n2") {
		t.Errorf("a label that no node has: %.600s", got)
	}

	home := -1
	eventually(t, "the package runs", func() bool {
		home, got = where(t, nodes, nodes[0], token, "up")
		return home >= 0
	})
	for i, n := range nodes {
		eventually(t, "all nodes call the package where it runs", func() bool {
			at, _ := where(t, nodes, n, token, "up")
			return at == home
		})
		eventually(t, "a package with a label runs where that is", func() bool {
			at, _ := where(t, nodes, n, token, "lab")
			return at == 2
		})
		if out := n.command(t, "cluster", "status"); !strings.Contains(out, "zone="+filepath.Base(nodes[i].dir)) ||
			!strings.Contains(out, "lab") || !strings.Contains(out, "up") {
			t.Errorf("cluster status of node %d:\n%s", i, out)
		}
	}

	// The node dies during a call. Another call goes on elsewhere, and what is watched there is to be read again.
	others := slices.Delete(slices.Clone(nodes), home, home+1)
	uri := "package://up/" + packagestest.Thing
	updates := listenAs(t, others[0], token, "", map[string]any{"resourceSubscriptions": []string{uri}})
	eventually(t, "a client of another node hears of a change of a resource", func() bool {
		where(t, nodes, others[1], token, "up")
		return updates.heard("resources/updated")
	})
	lost := make(chan string)
	go func() { lost <- others[0].callAs(t, token, "up_sleep", map[string]any{}) }()
	eventually(t, "the server has the call", func() bool {
		log := nodes[home].callAs(t, token, "package_logs", map[string]any{"id": "up"})
		return strings.Contains(log, "sleeping")
	})
	nodes[home].cmd.Process.Kill()
	nodes[home].cmd.Wait()
	killed := time.Now()
	if got := <-lost; !strings.Contains(got, "may have run") {
		t.Errorf("the call that ran there: %.500s", got)
	}
	next := -1
	eventually(t, "the package runs on another node", func() bool {
		next, _ = where(t, nodes, others[1], token, "up")
		return next >= 0
	})
	heard := updates.count("resources/updated")
	eventually(t, "a client hears of the resource on the node to which it has moved", func() bool {
		where(t, nodes, others[1], token, "up")
		return updates.count("resources/updated") > heard
	})
	t.Logf("the package ran elsewhere %v after its node was killed", time.Since(killed).Round(time.Millisecond))
	if next == home {
		t.Fatalf("the package runs on the node that was killed")
	}
	if at, got := where(t, nodes, others[0], token, "lab"); home == 2 && !strings.Contains(got, "no node of the cluster") ||
		home != 2 && at != 2 {
		t.Errorf("the package with a label after the death of node %d: %.500s", home, got)
	}

	// The node that has it now drains.
	nodes[next].command(t, "cluster", "drain", "--wait", "2m")
	for _, n := range others {
		eventually(t, "the package has left the node that drains", func() bool {
			at, _ := where(t, nodes, n, token, "up")
			return at >= 0 && at != next
		})
	}
}
