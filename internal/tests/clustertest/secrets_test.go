package clustertest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gatehouse/internal/access/secret"
)

// setSecret stores a secret on the machine of a node.
func (n *node) setSecret(t *testing.T, name, value string) ([]byte, error) {
	t.Helper()
	cmd := n.run(t, "secret", "set", name)
	cmd.Stdin = strings.NewReader(value)
	return cmd.CombinedOutput()
}

// TestSecretsOnAllNodes sets secrets on different nodes at once; each node can decrypt all of them, a node that was
// away gets what it missed, and none is written in the clear.
func TestSecretsOnAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	store := func(n *node) *secret.Store { return secret.In(filepath.Join(n.dir, "config", "gatehouse"), "") }
	has := func(n *node, name, value string) func() bool {
		return func() bool {
			got, err := store(n).Get(name)
			return err == nil && got.Reveal() == value
		}
	}
	names := []string{"FIRST", "SECOND", "THIRD"}
	var setting sync.WaitGroup
	for i, n := range nodes {
		setting.Go(func() {
			if out, err := n.setSecret(t, names[i], "value-of-"+names[i]); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	setting.Wait()
	for _, n := range nodes {
		for _, name := range names {
			eventually(t, "every node has every secret", has(n, name, "value-of-"+name))
		}
	}

	away := nodes[0]
	away.cmd.Process.Signal(syscall.SIGTERM)
	away.cmd.Wait()
	if out, err := away.setSecret(t, "ALONE", "x"); err == nil {
		t.Errorf("a secret was set on a node that does not run: %s", out)
	}
	was, err := store(nodes[1]).Recipient()
	if err != nil {
		t.Fatal(err)
	}
	nodes[1].command(t, "secret", "rotate")
	nodes[1].command(t, "secret", "remove", "FIRST")
	if out, err := nodes[2].setSecret(t, "LATER", "value-of-LATER"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	away.start(t, away.cmd.Args[1:]...)
	away.awaitServing(t)
	eventually(t, "the node that was away has the newest secrets", func() bool {
		_, err := store(away).Get("FIRST")
		return err != nil && has(away, "LATER", "value-of-LATER")()
	})
	rotated, err := store(nodes[1]).Recipient()
	if err != nil || rotated == was {
		t.Errorf("the key after its rotation is %s, before %s, %v", rotated, was, err)
	}
	for _, n := range nodes {
		eventually(t, "every node has the new key", func() bool {
			public, err := store(n).Recipient()
			return err == nil && public == rotated
		})
	}
	err = filepath.WalkDir(away.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte("value-of-")) {
			t.Errorf("%s has a secret in the clear", path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}

	// A machine that has secrets of its own does not lose them by joining.
	away.cmd.Process.Signal(syscall.SIGTERM)
	away.cmd.Wait()
	away.command(t, "cluster", "leave", "--alone")
	if out, err := away.setSecret(t, "ALONE", "x"); err != nil {
		t.Fatalf("a machine that has left cannot set secrets: %v, %s", err, out)
	}
	away.start(t, away.cmd.Args[1:]...)
	if err := away.cmd.Wait(); err == nil || !strings.Contains(away.output.String(), "is not that of the cluster") {
		t.Errorf("a machine with other secrets has joined: %v", err)
	}
	if got := away.command(t, "secret", "list"); !strings.Contains(got, "ALONE") {
		t.Errorf("the secrets of a machine that could not join: %s", got)
	}
}
