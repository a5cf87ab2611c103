package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// addNode starts one more node, as startNodes does, and returns it when it serves.
func addNode(t *testing.T, nodes []*node, dir string) *node {
	t.Helper()
	n := &node{dir: dir, port: freePort(t), env: nodes[0].env, output: &lockedBuffer{}}
	if err := os.MkdirAll(filepath.Join(n.dir, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	n.url = "http://127.0.0.1:" + port + "/mcp"
	n.start(t, "serve", "file", "dir", "-d", filepath.Join(n.dir, "work"), "--http", "-p", port,
		"--cluster", "test", "--cluster-listen", "127.0.0.1:"+n.port, "--join", "127.0.0.1:"+nodes[0].port)
	t.Cleanup(func() {
		n.stop()
		if t.Failed() {
			t.Logf("%s", n.output)
		}
	})
	n.awaitServing(t)
	return n
}

// stop stops the host. It may be called again.
func (n *node) stop() {
	n.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(30*time.Second, func() { n.cmd.Process.Kill() })
	defer late.Stop()
	n.cmd.Wait()
}

// id returns the id of the node, as the command lists it.
func (n *node) id(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(n.command(t, "cluster", "status")) {
		if strings.Contains(line, "127.0.0.1:"+n.port) {
			return strings.Fields(line)[0]
		}
	}
	t.Fatal("the node is not among those that it lists")
	return ""
}

// TestMembersAreReplaced lets a fourth node leave and join again, then removes one that has died.
func TestMembersAreReplaced(t *testing.T) {
	t.Parallel()
	lone := &node{dir: t.TempDir()}
	if out, err := lone.run(t, "cluster", "join-token").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "no node") {
		t.Errorf("a token of a machine that is no node: %v\n%s", err, out)
	}
	nodes := startNodes(t)
	nodes[0].command(t, "user", "add", "ann", "--no-password")
	fourth := addNode(t, nodes, filepath.Join(t.TempDir(), "fourth"))
	first := fourth.id(t)
	checkPaths(t, nodes[0], fourth)
	if out, err := nodes[0].run(t, "cluster", "remove", first).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "is heard") {
		t.Errorf("removal of a node that is heard: %v\n%s", err, out)
	}

	// A node that leaves tells the others.
	fourth.stop()
	fourth.command(t, "cluster", "leave")
	members := func() string { return nodes[0].command(t, "cluster", "status") }
	if got := members(); strings.Contains(got, first) || strings.Count(got, "alive") != 3 {
		t.Errorf("after a node has left:\n%s", got)
	}
	rejoin(t, nodes, fourth)
	if got := fourth.id(t); got == first {
		t.Error("it has joined under the id with which it left")
	}

	// A node that has died delays changes of users until it is removed.
	dead := nodes[2]
	id := dead.id(t)
	dead.cmd.Process.Kill()
	dead.cmd.Wait()
	nodes[0].command(t, "cluster", "remove", id)
	eventually(t, "a change of users does not wait for it", func() bool {
		begun := time.Now()
		nodes[1].command(t, "user", "add", fmt.Sprint("u", begun.UnixNano()), "--no-password")
		return time.Since(begun) < 7*time.Second // of the lease of 8 s
	})
	eventually(t, "the node that was asked knows of the removal", func() bool {
		got := members()
		return !strings.Contains(got, id) && strings.Count(got, "alive") == 3
	})
	if out, err := nodes[0].run(t, "cluster", "remove", nodes[1].id(t)).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "would have 2 members") {
		t.Errorf("removal of one of three: %v\n%s", err, out)
	}

	// One of three cannot leave either, and hears it at once.
	nodes[1].stop()
	begun := time.Now()
	if out, err := nodes[1].run(t, "cluster", "leave").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "would have 2 members") || !strings.Contains(string(out), "--alone") {
		t.Errorf("one of three leaves: %v\n%s", err, out)
	}
	t.Logf("the refusal of one of three that leaves took %v", time.Since(begun).Round(time.Millisecond))
	nodes[1].start(t, nodes[1].cmd.Args[1:]...)
	nodes[1].awaitServing(t)

	// The removed node does not start again, and says what to do.
	again := dead.run(t, dead.cmd.Args[1:]...)
	out := endWithin(t, again, time.Minute)
	if !strings.Contains(out, "was removed from its cluster") {
		t.Errorf("a removed node that is started: %s", out)
	}
	dead.command(t, "cluster", "leave")
}

// checkPaths has the status say that calls to one node go over NATS, and why, and to all others directly.
func checkPaths(t *testing.T, n, other *node) {
	t.Helper()
	direct := other.id(t)
	eventually(t, "the hosts are connected", func() bool {
		for line := range strings.Lines(n.command(t, "cluster", "status")) {
			if strings.HasPrefix(line, direct) {
				return strings.Fields(line)[3] == "direct"
			}
		}
		return false
	})
}

// rejoin makes a node that has left one of the cluster again. It has users of its own, which it sets aside.
func rejoin(t *testing.T, nodes []*node, n *node) {
	t.Helper()
	join := []string{"cluster", "join", "127.0.0.1:" + nodes[0].port, "--cluster", "test", "--cluster-listen",
		"127.0.0.1:" + n.port}
	if out, err := n.run(t, join...).CombinedOutput(); err == nil || !strings.Contains(string(out), "identity.db") ||
		!strings.Contains(string(out), "--set-aside") {
		t.Errorf("a machine with users of its own joins: %v\n%s", err, out)
	}
	if out := n.command(t, append(join, "--set-aside")...); !strings.Contains(out, "before-cluster-") {
		t.Errorf("joined: %s", out)
	}
	args := n.cmd.Args[1:]
	n.start(t, args[:slices.Index(args, "--cluster")]...) // the rest is in the settings
	n.awaitServing(t)
	if out, err := n.run(t, join...).CombinedOutput(); err == nil || !strings.Contains(string(out), "already, and runs") {
		t.Errorf("a node that runs joins: %v\n%s", err, out)
	}
}

// endWithin runs a command that must end by itself, and returns what it prints.
func endWithin(t *testing.T, cmd *exec.Cmd, limit time.Duration) string {
	t.Helper()
	late := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	if !late.Stop() {
		t.Errorf("it runs on after %v", limit)
	}
	if err == nil {
		t.Error("it has succeeded")
	}
	return string(out)
}
