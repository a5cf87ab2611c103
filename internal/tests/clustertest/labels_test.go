package clustertest

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/packages/packagestest"
)

// TestContextsNameLabels runs processes, sandboxes, own tools and packages of a context on the node whose label the
// context names, whichever node gets the call, and refuses what no node may run.
func TestContextsNameLabels(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "process", "sandbox", "package")
	token := administrator(t, nodes[0])
	own := nodes[0].dir + "/own.json"
	if err := os.WriteFile(own, []byte(`{"own_tools":[{"name":"place","description":"Says where it is.",`+
		`"command":{"path":"sh","args":["-c","echo home=$HOME"]}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	create := func(name, label string) {
		nodes[1].command(t, "context", "create", name, "--module", "process,sandbox,package", "--label", label,
			"--from", own)
	}
	create("far", "zone=n2")
	create("moon", "zone=moon")
	at := func(n *node, context, tool string, args map[string]any) (int, string) {
		t.Helper()
		got := n.callIn(t, context, token, tool, args)
		m := homeOf.FindStringSubmatch(got)
		if m == nil {
			return -1, got
		}
		for i, n := range nodes {
			if strings.HasPrefix(m[1], n.dir) {
				return i, got
			}
		}
		return -1, got
	}
	shell := map[string]any{"command": "sh", "args": []string{"-c", "echo home=$HOME"}}
	for i, n := range nodes {
		eventually(t, "a process of the context runs on the node with its label", func() bool {
			home, _ := at(n, "far", "process_run", shell)
			return home == 2
		})
		if home, got := at(n, "far", "place", map[string]any{}); home != 2 {
			t.Errorf("a tool of the context itself, by way of node %d: %.400s", i, got)
		}
		if home, got := at(n, "", "process_run", shell); home != i {
			t.Errorf("a process of the default context on node %d: %.400s", i, got)
		}
		for _, tool := range []string{"process_run", "place"} {
			args := shell
			if tool == "place" {
				args = map[string]any{}
			}
			if _, got := at(n, "moon", tool, args); !strings.Contains(got, "zone=moon") ||
				!strings.Contains(got, "zone=n0, zone=n1, zone=n2") || !strings.Contains(got, "nothing was run") {
				t.Errorf("%s in a context whose label no node has: %.600s", tool, got)
			}
		}
	}
	started := nodes[0].callIn(t, "far", token, "process_start", map[string]any{"command": "sleep", "args": []string{"1000"}})
	if id := find(t, `(process_[a-z2-7]{24}_[a-z2-7]{10})`, started); !strings.HasSuffix(id, "_"+nodeID(t, nodes[2])) {
		t.Errorf("the handle of a process of the context: %s", id)
	}
	if got := nodes[0].callIn(t, "moon", token, "sandbox_create", map[string]any{}); !strings.Contains(got, "zone=moon") {
		t.Errorf("a sandbox in a context whose label no node has: %.600s", got)
	}
	if _, err := os.Stat("/proc/self/ns/user"); err == nil && os.Getuid() == 0 {
		made := nodes[0].callIn(t, "far", token, "sandbox_create", map[string]any{})
		if id := find(t, `"sandbox_id":"([^"]+)"`, made); !strings.HasSuffix(id, "_"+nodeID(t, nodes[2])) {
			t.Errorf("a sandbox of the context: %.300s", made)
		}
	}
	packagesByContext(t, nodes, token, at)
	stagedPackages(t, nodes, token, at)

	// A label that is none, and one of a host without a cluster.
	cmd := nodes[0].run(t, "context", "create", "odd", "--label", "zone")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "expected KEY=VALUE") {
		t.Errorf("a text that is no label: %v, %s", err, out)
	}
}

// packagesByContext calls packages in contexts with labels.
func packagesByContext(
	t *testing.T, nodes []*node, token string, at func(*node, string, string, map[string]any) (int, string),
) {
	nodes[0].installPackage(t, token, "first", nil)                             // placed by the context's first call
	nodes[0].installPackage(t, token, "every", map[string]any{"nodes": "each"}) // on each node
	nodes[0].installPackage(t, token, "here", map[string]any{"labels": []string{"zone=n1"}})
	none := map[string]any{}
	for i, n := range nodes {
		eventually(t, "a package is placed by the context of its first call", func() bool {
			home, _ := at(n, "far", "first_where", none)
			return home == 2
		})
		eventually(t, "a package that runs on each node runs on that with the label", func() bool {
			home, _ := at(n, "far", "every_where", none)
			return home == 2
		})
		eventually(t, "each node runs a package for its own callers", func() bool {
			home, _ := at(n, "", "every_where", none)
			return home == i
		})
	}
	eventually(t, "a package runs where its own label is", func() bool {
		home, _ := at(nodes[0], "", "here_where", none)
		return home == 1
	})
	if _, got := at(nodes[0], "far", "here_where", none); !strings.Contains(got, "lacks a label") ||
		!strings.Contains(got, "zone=n2") {
		t.Errorf("a package whose node lacks the label of the context: %.600s", got)
	}
	for _, id := range []string{"first", "every", "here"} {
		if _, got := at(nodes[1], "moon", id+"_where", none); !strings.Contains(got, "zone=moon") {
			t.Errorf("package %s in a context whose label no node has: %.600s", id, got)
		}
	}
}

// stagedPackages calls a package that has its place on one node in a context that stages: the call stays on the node that
// has its task, and the folder as it is.
func stagedPackages(
	t *testing.T, nodes []*node, token string, at func(*node, string, string, map[string]any) (int, string),
) {
	if err := overlay.Probe(filepath.Join(nodes[0].dir, "probe"), false); err != nil || os.Getuid() != 0 {
		t.Logf("no calls of packages are staged here: %v", err)
		return
	}
	settings := filepath.Join(nodes[0].dir, "staging.json")
	if err := os.WriteFile(settings, []byte(`{"rules":[{"name":"stage","then":"stage"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[0].command(t, "context", "create", "staging", "--module", "package", "--from", settings)
	folder := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := packagestest.Environment("good")
	env[packagestest.ListAttacks], env["GATEHOUSE_TEST_NODE"] = "1", ""
	begun := nodes[1].callAs(t, token, "package_install", map[string]any{
		"id": "apart", "command": program, "env": env, "confirm": "apart",
		"grants": map[string]any{"folders": []string{folder}},
	})
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, begun)
	if done := nodes[1].callAs(t, token, "job_wait", map[string]any{"id": job}); !strings.Contains(done, `"tools":[`) {
		t.Fatalf("the installation: %.2000s", done)
	}
	eventually(t, "the package has its place", func() bool {
		home, _ := at(nodes[0], "far", "apart_where", map[string]any{})
		return home == 2
	})
	for i, n := range nodes {
		made := filepath.Join(folder, "made")
		got := n.callIn(t, "staging", token, "apart_attack", map[string]any{"kind": "write", "target": made})
		if !strings.Contains(got, "done: ") || !strings.Contains(got, "staged in task st_") {
			t.Errorf("a staged call by way of node %d: %.600s", i, got)
		}
		if home, got := at(n, "staging", "apart_where", map[string]any{}); home != i {
			t.Errorf("a staged call by way of node %d runs on node %d: %.600s", i, home, got)
		}
		if _, err := os.Stat(made); err == nil {
			t.Error("the folder has what the call has made")
		}
	}
}

// loadOf returns the load of a node as the cluster's status shows it, without packages that have their places there.
func loadOf(t *testing.T, n *node, id string) string {
	t.Helper()
	for line := range strings.Lines(n.command(t, "cluster", "status")) {
		if f := strings.Fields(line); len(f) > 8 && f[0] == id {
			return f[8]
		}
	}
	return ""
}

// TestInstancesEndWithSessions runs an instance of a package for one session, on another node than the session. It ends
// soon after the session, and the load of its node counts what runs there once.
func TestInstancesEndWithSessions(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	there := nodeID(t, nodes[2])
	nodes[0].installPackage(t, token, "own", map[string]any{"labels": []string{"zone=n2"}, "instances": "session"})
	nodes[0].installPackage(t, token, "all", map[string]any{"labels": []string{"zone=n2"}})
	eventually(t, "the shared package runs on its node", func() bool {
		home, _ := where(t, nodes, nodes[1], token, "all")
		return home == 2
	})
	eventually(t, "a package that runs in its place is not counted twice", func() bool {
		return loadOf(t, nodes[1], there) == "0"
	})
	_, header, err := post(nodes[0].url, "token "+token, initialize)
	if err != nil {
		t.Fatal(err)
	}
	session := header.Get("Mcp-Session-Id") + "token " + token
	pid := ""
	eventually(t, "the session has an instance on another node", func() bool {
		got, _, err := post(nodes[0].url, session,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"own_where","arguments":{}}}`)
		if m := regexp.MustCompile(`pid=(\d+)`).FindStringSubmatch(got); err == nil && m != nil {
			pid = m[1]
		}
		return pid != "" && strings.Contains(got, nodes[2].dir)
	})
	lives := func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err == nil
	}
	if !lives() {
		t.Fatalf("there is no process %s of the instance", pid)
	}
	r, err := http.NewRequest("DELETE", nodes[1].url, nil) // by way of a third node
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mcp-Session-Id", header.Get("Mcp-Session-Id"))
	r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode >= 300 {
		t.Fatalf("the end of the session: %s", a.Status)
	}
	eventually(t, "the instance has ended with the session", func() bool { return !lives() })
}
