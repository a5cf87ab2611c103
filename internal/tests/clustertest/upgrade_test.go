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

	"gatehouse/internal/access/secret"
)

// olderCommit is what a node of the version before may be: the last commit whose nodes write no formats. When a version
// is released this becomes the tag of the minor version before it.
const olderCommit = "cafdaa98803c80e7819593904a63403773363b7b"

// olderProgram builds the program of an older commit.
func olderProgram(t *testing.T) string {
	t.Helper()
	if exec.Command("git", "cat-file", "-e", olderCommit+"^{commit}").Run() != nil {
		t.Skipf("the commit %s of the older version is not in this clone: fetch the whole history", olderCommit)
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "source"), filepath.Join(dir, "gatehouse")
	script := `set -e; mkdir "$1"; cd "$(git rev-parse --show-toplevel)"; git archive "$0" | tar -x -C "$1"; cd "$1"; ` +
		`go build -trimpath -o "$2" ./cmd/gatehouse`
	if out, err := exec.Command("sh", "-c", script, olderCommit, source, program).CombinedOutput(); err != nil {
		t.Fatalf("build the older version: %v\n%s", err, out)
	}
	if err := os.RemoveAll(source); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestBesideAnOlderVersion runs nodes of the older version beside this one, and upgrades one after the other.
func TestBesideAnOlderVersion(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to build an older version")
	}
	older := olderProgram(t)
	t.Run("one older", func(t *testing.T) {
		nodes := startVersions(t, nil, [3]string{older, "", ""}, "process")
		testRotationWaits(t, nodes)
		testBothVersions(t, nodes)
	})
	t.Run("two older", func(t *testing.T) {
		testBothVersions(t, startVersions(t, nil, [3]string{older, "", older}, "process"))
	})
	t.Run("an upgrade under load", func(t *testing.T) {
		nodes := startVersions(t, nil, [3]string{older, older, older}, "process")
		testUpgrade(t, nodes)
		testBothVersions(t, nodes)
		if status := nodes[0].command(t, "cluster", "status"); strings.Contains(status, "is not changed") {
			t.Errorf("the status after the upgrade:\n%s", status)
		}
		nodes[0].command(t, "secret", "rotate")
	})
}

// testRotationWaits asks for a new key of the secrets while a node could not read what is encrypted with the one before.
func testRotationWaits(t *testing.T, nodes []*node) {
	if out, err := nodes[1].setSecret(t, "SHARED", "value-of-SHARED"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	public := func() string {
		p, err := secret.In(filepath.Join(nodes[1].dir, "config", "gatehouse"), "").Recipient()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	was, id := public(), nodeID(t, nodes[0])
	out, err := nodes[1].run(t, "secret", "rotate").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "while node "+id) || public() != was {
		t.Errorf("a rotation beside an older node: %v, %s", err, out)
	}
	if status := nodes[2].command(t, "cluster", "status"); strings.Count(status, "is not changed while") != 1 ||
		!strings.Contains(status, "while node "+id) {
		t.Errorf("the status beside an older node:\n%s", status)
	}
}

// testBothVersions makes calls and changes users through every node, and looks for the result at every other one.
func testBothVersions(t *testing.T, nodes []*node) {
	for i, n := range nodes {
		name := fmt.Sprint("user", i)
		n.command(t, "user", "add", name, "--no-password")
		made := n.command(t, "token", "create", "--user", name, "--name", name)
		words := strings.Fields(made)
		token := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "gh_") })
		if token < 0 {
			t.Fatalf("no token in %s", made)
		}
		accepts := func(other *node) bool {
			got, header, err := post(other.url, "token "+words[token], initialize)
			return err == nil && header.Get("Mcp-Session-Id") != "" && strings.Contains(got, `"result"`)
		}
		call := func(at *node, name, arguments string) string {
			got, err := send(client, modernRequest(at.url, words[token], name, arguments), `"complete"`)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return got
		}
		started := call(n, "process_start", `{"command":"sleep","args":["100"]}`)
		id := find(t, `(process_[a-z2-7]{24}_[a-z2-7]{10})`, started)
		session := openAs(t, n.url, words[token])
		for k, other := range nodes {
			if !accepts(other) {
				t.Errorf("node %d does not accept the token of node %d", k, i)
			}
			if got := call(other, "process_output", `{"id":"`+id+`"}`); !strings.Contains(got, `"running"`) {
				t.Errorf("node %d about a process of node %d: %.400s", k, i, got)
			}
			if got, _, err := post(other.url, session+"token "+words[token], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); err != nil ||
				!strings.Contains(got, `"file_read"`) {
				t.Errorf("a session of node %d at node %d: %.300s, %v", i, k, got, err)
			}
		}
		call(nodes[(i+1)%3], "process_stop", `{"id":"`+id+`"}`)
		var known string
		for line := range strings.Lines(nodes[(i+2)%3].command(t, "token", "list")) {
			if strings.Contains(line, name) {
				known = strings.Fields(line)[0]
			}
		}
		nodes[(i+2)%3].command(t, "token", "revoke", known)
		for k, other := range nodes {
			if accepts(other) {
				t.Errorf("node %d accepts a token that node %d has revoked", k, (i+2)%3)
			}
		}
	}
}

// testUpgrade stops one node after the other and starts it with this version, while clients call.
func testUpgrade(t *testing.T, nodes []*node) {
	b := &balancer{nodes: nodes}
	url := b.listen(t)
	var sessions []string
	for _, n := range nodes {
		sessions = append(sessions, open(t, n.url), open(t, n.url))
	}
	l := startLoad(t, url, sessions)
	for i, n := range nodes {
		eventually(t, "clients call", func() bool { return l.calls.Load() > int64(100*(i+1)) || t.Failed() })
		n.command(t, "cluster", "drain")
		b.down[i].Store(true)
		eventually(t, "the balancer has left the node out", func() bool { return b.open[i].Load() == 0 })
		if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := n.cmd.Wait(); err != nil {
			t.Errorf("node %d ended with %v", i, err)
		}
		n.older = ""
		n.start(t, n.cmd.Args[1:]...)
		n.awaitServing(t)
		b.down[i].Store(false)
		before := l.calls.Load()
		eventually(t, "clients call a node of each version", func() bool {
			return l.calls.Load() > before+100 || t.Failed()
		})
		if t.Failed() {
			break
		}
	}
	l.end()
	t.Logf("%d calls during the upgrade of three nodes, and each succeeded: %v", l.calls.Load(), !t.Failed())
}
