package clustertest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
)

// ask runs a command that reads a line of its standard input, and returns what it prints and whether it succeeded.
func (n *node) ask(t *testing.T, line string, args ...string) (string, bool) {
	t.Helper()
	cmd := n.run(t, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(line+"\n"), &out, &out
	err := cmd.Run()
	return errText(err, &out), err == nil
}

// copyTree copies a folder with the modes of its files.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func errText(err error, out *bytes.Buffer) string {
	if err != nil {
		return err.Error() + ": " + out.String()
	}
	return out.String()
}

func accepts(t *testing.T, n *node, token string) bool {
	t.Helper()
	got, _, err := post(n.url, "token "+token, initialize)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(got, `"serverInfo"`)
}

// TestBackupOfACluster starts a node from an old image of its disk, which serves nothing that is revoked; then restores
// users, tokens and secrets of the cluster into a fresh one.
func TestBackupOfACluster(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package")
	root := administrator(t, nodes[0])
	args, open, _ := slowPackage(t, "up")
	if err := os.WriteFile(open, nil, 0o600); err != nil { // so that its server starts at once
		t.Fatal(err)
	}
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, nodes[0].callAs(t, root, "package_install", args))
	if got := nodes[0].callAs(t, root, "job_wait", map[string]any{"id": job}); !strings.Contains(got, `"tools":[`) {
		t.Fatalf("the installation: %.1000s", got)
	}
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	kept := strings.TrimSpace(nodes[0].command(t, "token", "create", "--user", "ada", "--name", "kept"))
	revoked := strings.TrimSpace(nodes[0].command(t, "token", "create", "--user", "ada", "--name", "revoked"))
	if out, err := nodes[0].setSecret(t, "THING", "the value"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	late := nodes[2]
	late.stop()
	image := filepath.Join(t.TempDir(), "image")
	copyTree(t, late.dir, image)
	late.start(t, late.cmd.Args[1:]...)
	late.awaitServing(t)
	for line := range strings.Lines(late.command(t, "token", "list")) {
		if strings.Contains(line, "revoked") {
			late.command(t, "token", "revoke", strings.Fields(line)[0])
		}
	}
	late.stop()
	if err := os.RemoveAll(late.dir); err != nil {
		t.Fatal(err)
	}
	copyTree(t, image, late.dir)
	late.start(t, late.cmd.Args[1:]...)
	late.awaitServing(t)
	if !strings.Contains(late.output.String(), "is an old image") {
		t.Error("a node of an old image does not say so")
	}
	if accepts(t, late, revoked) {
		t.Error("a node of an old image accepts a token that was revoked since")
	}
	eventually(t, "it serves the newest", func() bool { return accepts(t, late, kept) })
	if accepts(t, late, revoked) {
		t.Error("a node of an old image accepts a token that was revoked since")
	}

	const password = "a password of a backup"
	file := filepath.Join(t.TempDir(), "work.cluster")
	if out, ok := late.ask(t, password, "cluster", "backup", file, "--ask"); !ok {
		t.Fatal(out)
	}
	if raw, err := os.ReadFile(file); err != nil || bytes.Contains(raw, []byte("ada")) {
		t.Errorf("the backup can be read by anyone: %v", err)
	}
	if out, ok := late.ask(t, password, "cluster", "restore", file, "--ask"); ok || !strings.Contains(out, "fresh cluster") {
		t.Errorf("a restore into a cluster that is in use: %s", out)
	}
	for _, n := range nodes {
		n.stop()
	}

	fresh := startNodes(t, "package")
	if out, ok := fresh[1].ask(t, "another password", "cluster", "restore", file, "--ask"); ok ||
		!strings.Contains(out, "password is wrong") {
		t.Errorf("with a wrong password: %s", out)
	}
	if out, ok := fresh[1].ask(t, password, "cluster", "restore", file, "--ask"); !ok {
		t.Fatal(out)
	}
	for i, n := range fresh {
		eventually(t, "a node of the fresh cluster has the users", func() bool { return accepts(t, n, kept) })
		if accepts(t, n, revoked) {
			t.Errorf("node %d accepts a token that was revoked before the backup", i)
		}
	}
	for _, n := range fresh {
		eventually(t, "the records of packages are restored", func() bool {
			return strings.Contains(n.callAs(t, root, "up_where", map[string]any{}), "home=")
		})
	}
	eventually(t, "the secrets are restored", func() bool {
		got, err := secret.In(filepath.Join(fresh[2].dir, "config", "gatehouse"), "").Get("THING")
		return err == nil && got.Reveal() == "the value"
	})
	fresh[0].command(t, "user", "add", "bea", "--no-password")
	if got := fresh[2].command(t, "user", "list"); !strings.Contains(got, "ada") || !strings.Contains(got, "bea") {
		t.Errorf("users after the restore: %s", got)
	}
}
