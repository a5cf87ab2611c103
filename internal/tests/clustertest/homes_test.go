package clustertest

import (
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
