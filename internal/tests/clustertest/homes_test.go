package clustertest

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/packages/packagestest"
)

// alone returns the arguments of a node without those that make it a node.
func alone(args []string) (rest []string) {
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--cluster") || args[i] == "--join" {
			i++
			continue
		}
		rest = append(rest, args[i])
	}
	return rest
}

// TestPackagesOfNodesThatLeaveAndJoin makes a node with a package a host of its own, which keeps it; and refuses a host
// that has another package as a node.
func TestPackagesOfNodesThatLeaveAndJoin(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	nodes[0].installPackage(t, token, "up", map[string]any{"nodes": "each"})
	gone := nodes[2]
	eventually(t, "a node runs the package", func() bool {
		return strings.Contains(gone.callAs(t, token, "up_where", map[string]any{}), "home="+gone.dir)
	})

	stranger := &node{dir: filepath.Join(t.TempDir(), "n3"), port: freePort(t), output: &lockedBuffer{}}
	if err := os.MkdirAll(filepath.Join(stranger.dir, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(stranger.dir, "start.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec env GATEHOUSE_TEST_NODE= "+self+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	add := []string{"package", "add", "odd", "--trust", "--yes"}
	for name, value := range packagestest.Environment("good") {
		add = append(add, "--env", name+"="+value)
	}
	stranger.command(t, append(add, "--", script)...)
	args := append(slices.Clone(nodes[1].cmd.Args[1:]), "--join", "127.0.0.1:"+nodes[0].port)
	for i := range args {
		switch args[i] {
		case nodes[1].dir + "/work":
			args[i] = stranger.dir + "/work"
		case "127.0.0.1:" + nodes[1].port:
			args[i] = "127.0.0.1:" + stranger.port
		case "-p":
			args[i+1] = freePort(t)
		}
	}
	if out := ends(t, stranger.run(t, args...)); !strings.Contains(out, "packages that are not those of the cluster (odd)") ||
		!strings.Contains(out, "gatehouse package remove") {
		t.Errorf("a host with another package as a node: %.1500s", out)
	}

	gone.stop()
	gone.command(t, "cluster", "leave", "--alone")
	gone.start(t, alone(gone.cmd.Args[1:])...)
	gone.awaitServing(t)
	if got := gone.callAs(t, token, "package_list", map[string]any{}); !strings.Contains(got, "up") {
		t.Errorf("the packages of a node that has left: %s", got)
	}
	eventually(t, "the host that was a node runs the package", func() bool {
		return strings.Contains(gone.callAs(t, token, "up_where", map[string]any{}), "home="+gone.dir)
	})
}

// ends runs a command that has to end by itself, and returns what it prints.
func ends(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(3*time.Minute, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	if cmd.Wait() == nil {
		t.Error("it has ended without an error")
	}
	return out.String()
}

// TestANodeInstallsByTheSameLock installs a package of npm on one node, which runs on each: the others install it by
// the lock file that npm has written there.
func TestANodeInstallsByTheSameLock(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to install a package of npm's registry")
	}
	t.Parallel()
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	begun := nodes[0].callAs(t, token, "package_install", map[string]any{
		"id": "mem", "source": "npm:@modelcontextprotocol/server-memory", "trust": true, "confirm": "mem", "nodes": "each",
	})
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, begun)
	eventually(t, "it is installed", func() bool {
		got := nodes[0].callAs(t, token, "job_wait", map[string]any{"id": job})
		if strings.Contains(got, `"isError":true`) || strings.Contains(got, `"error"`) {
			t.Fatalf("the installation: %.2000s", got)
		}
		return strings.Contains(got, `"tools":[`)
	})
	var first map[string]string
	for i, n := range nodes {
		eventually(t, "each node runs it", func() bool {
			return strings.Contains(n.callAs(t, token, "mem_read_graph", map[string]any{}), "entities")
		})
		pattern := filepath.Join(n.dir, "data", "gatehouse", "packages", "mem", "program-*", "package-lock.json")
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) != 1 {
			t.Fatalf("the lock files of node %d: %v, %v", i, found, err)
		}
		if lock := locked(t, found[0]); i == 0 {
			first = lock
		} else if len(lock) == 0 || !maps.Equal(lock, first) {
			t.Errorf("node %d has installed by another lock file: %v; want %v", i, lock, first)
		}
	}
}

// locked returns the versions and digests of a lock file, by package.
func locked(t *testing.T, path string) map[string]string {
	t.Helper()
	var lock struct {
		Packages map[string]struct{ Version, Integrity string } `json:"packages"`
	}
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &lock)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for name, p := range lock.Packages {
		if name != "" { // the folder itself
			all[name] = p.Version + " " + p.Integrity
		}
	}
	return all
}
