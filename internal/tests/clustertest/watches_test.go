package clustertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// boundVariable begins the entry of the environment that names the path for bindFolder.
const boundVariable = "GATEHOUSE_TEST_BOUND="

// bindFolder makes a node have its own folder work at another path, as on a machine of its own.
func bindFolder(cmd *exec.Cmd, path string) {
	cmd.Args = append([]string{
		"unshare", "-m", "--propagation", "private", "sh", "-c", `mount --bind "$HOME/work" "$0" && exec "$@"`, path,
		cmd.Path,
	}, cmd.Args[1:]...)
	cmd.Path, cmd.Err = exec.LookPath("unshare")
}

// TestWatchesOnAllNodes subscribes on one node to a file that each node has its own of, as on machines of their own,
// and changes it on each. When a node dies the client is told to read again.
func TestWatchesOnAllNodes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("unshare"); err != nil || os.Getuid() != 0 {
		t.Skip("only root, on Linux, gives each node a folder of its own at the same path")
	}
	folder := t.TempDir()
	nodes := startNodesIn(t, []string{boundVariable + folder}, "-d", folder)
	write := func(n *node, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(n.dir, "work", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		write(n, "a.txt", "of "+n.port)
		write(n, "b.txt", "of "+n.port)
	}
	a, b := "file://"+folder+"/a.txt", "file://"+folder+"/b.txt"
	read := func(n *node, uri string) string {
		return modern(t, n.url, "resources/read", uri, map[string]any{"uri": uri})
	}
	for _, n := range nodes {
		if got := read(n, a); !strings.Contains(got, "of "+n.port) {
			t.Fatalf("a node does not read its own file: %.500s", got)
		}
	}
	session := open(t, nodes[0].url)
	other := open(t, nodes[0].url)
	hears := func(session string) *listener { return openStream(t, nodes[0], session) }
	first, second := hears(session), hears(other)
	subscribe := func(session, method, uri string) {
		t.Helper()
		got, _, err := post(nodes[0].url, session, `{"jsonrpc":"2.0","id":1,"method":"resources/`+method+`","params":{"uri":"`+
			uri+`"}}`)
		if err != nil || !strings.Contains(got, `"result"`) {
			t.Fatalf("%s: %.500s, %v", method, got, err)
		}
	}
	subscribe(session, "subscribe", a)
	subscribe(other, "subscribe", a)
	subscribe(other, "subscribe", b)
	for i, n := range nodes {
		before := first.count(a)
		eventually(t, "a client hears of a change on each node", func() bool {
			write(n, "a.txt", time.Now().String())
			time.Sleep(300 * time.Millisecond)
			return first.count(a) > before && second.count(a) > 0
		})
		if first.count(b) > 0 {
			t.Errorf("node %d: a client hears of what it has not subscribed to", i)
		}
	}

	subscribe(session, "unsubscribe", a)
	subscribe(other, "unsubscribe", a)
	eventually(t, "nothing more is heard of a file without subscribers", func() bool {
		before := first.count(a) + second.count(a)
		heard := second.count(b)
		eventually(t, "the other file is still watched", func() bool {
			write(nodes[1], "a.txt", time.Now().String())
			write(nodes[1], "b.txt", time.Now().String())
			time.Sleep(300 * time.Millisecond)
			return second.count(b) > heard
		})
		return first.count(a)+second.count(a) == before
	})

	heard := second.count(b)
	nodes[1].crash()
	eventually(t, "a client is told to read again when a node dies", func() bool { return second.count(b) > heard })
	args := nodes[1].cmd.Args
	nodes[1].start(t, args[slices.Index(args, "serve"):]...)
	nodes[1].awaitServing(t)
	heard = second.count(b)
	eventually(t, "a client hears of changes on a node that is back", func() bool {
		write(nodes[1], "b.txt", time.Now().String())
		time.Sleep(300 * time.Millisecond)
		return second.count(b) > heard
	})
}
