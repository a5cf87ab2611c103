package clustertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJoin joins by the command, which refuses what cannot work and changes nothing then; the first two nodes say what
// they wait for. Later a node without cluster.direct is reached over NATS, and the status says why.
func TestJoin(t *testing.T) {
	t.Parallel()
	var all []*node
	for i, name := range []string{"a", "b", "c"} {
		n := &node{dir: filepath.Join(t.TempDir(), name), port: freePort(t), output: &lockedBuffer{}}
		if err := os.MkdirAll(filepath.Join(n.dir, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			n.env = []string{"GATEHOUSE_CLUSTER_DIRECT=none"}
		}
		all = append(all, n)
	}
	serve := func(n *node, more ...string) {
		port := freePort(t)
		n.url = "http://127.0.0.1:" + port + "/mcp"
		n.start(t, append([]string{"serve", "file", "-d", filepath.Join(n.dir, "work"), "--http", "-p", port}, more...)...)
		t.Cleanup(func() {
			n.stop()
			if t.Failed() {
				t.Logf("%s", n.output)
			}
		})
	}
	refused := func(n *node, expected string, args ...string) {
		t.Helper()
		out, err := n.run(t, append([]string{"cluster"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), expected) {
			t.Errorf("cluster %s: %v, want %q\n%s", strings.Join(args, " "), err, expected, out)
		}
	}
	first := "127.0.0.1:" + all[0].port
	refused(all[0], "no node", "status")
	refused(all[1], "--cluster-listen", "join", first, "--cluster", "test")
	refused(all[1], "requires a token", "join", "10.255.0.1:7000", "--cluster", "test", "--cluster-listen", "127.0.0.1:1")
	refused(all[1], "cluster address of another node", "join", "nowhere", "--cluster", "test", "--cluster-listen", "127.0.0.1:1")
	stale := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(stale, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(all[1], "is not a join token", "join", first, "--cluster", "test", "--cluster-listen", "127.0.0.1:1",
		"--join-token-file", stale)

	serve(all[0], "--cluster", "test", "--cluster-listen", first)
	saysThatItWaits(t, all[0], "1 of 3 nodes are here")
	for i, n := range all[1:] {
		n.command(t, "cluster", "join", first, "--cluster", "test", "--cluster-listen", "127.0.0.1:"+n.port)
		serve(n)
		if i == 0 {
			saysThatItWaits(t, n, "2 of 3 nodes are here")
		}
	}
	for _, n := range all {
		n.awaitServing(t)
	}

	// A client that starts a host for itself on the machine of a node gets one, which is no node.
	own := all[1].run(t, "serve", "file", "-d", filepath.Join(all[1].dir, "work"))
	own.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	if out, err := own.CombinedOutput(); err != nil || !strings.Contains(string(out), `"result":{}`) {
		t.Errorf("a host over standard input and output on the machine of a node: %v\n%s", err, out)
	}

	overNATS, direct := all[2].id(t), all[1].id(t)
	eventually(t, "the status says how calls go", func() bool {
		out := all[0].command(t, "cluster", "status")
		return strings.Contains(out, "to "+overNATS+" go over NATS and take longer: the node has no cluster.direct") &&
			!strings.Contains(out, "to "+direct+" go over NATS")
	})
	if out := all[2].command(t, "cluster", "status"); !strings.Contains(out, "this node has no cluster.direct") {
		t.Errorf("the status of the node without cluster.direct:\n%s", out)
	}
}

// saysThatItWaits has the status of a node that waits for others fail with why it waits.
func saysThatItWaits(t *testing.T, n *node, why string) {
	t.Helper()
	eventually(t, "the status says "+why, func() bool {
		out, err := n.run(t, "cluster", "status").CombinedOutput()
		if err == nil {
			t.Fatalf("the status of a cluster of too few nodes:\n%s", out)
		}
		return strings.Contains(string(out), why)
	})
}
